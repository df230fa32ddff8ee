"""Makes the tokenizer fixtures of this directory.

    python make_fixtures.py SmolLM2-135M-Instruct.Q4_1.gguf gemma-3-270m-q4_k_m.gguf references/

`references/` holds smollm2.json and gemma3-270m.json: prompts and texts with the ids that llama.cpp gave them. Needs
the packages gguf and tokenizers. The ids recorded for the texts below come from the `tokenizers` library, from
tokenizers put together here the way the models' published tokenizer.json files are (they are not in the GGUF).
"""

import json
import sys
from pathlib import Path

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

TEXTS = [
    "X.<|im_end|>",
    "Hello world! Café déjà vu — 123 😊",
    "<think>\nfour\n</think>",
    "  two leading spaces",
    "def f(x):\n    if x:\n        return 'it''s'\n\n\n\tdone   ",
    "I'm sure they'll say WE'RE 12345.678 km from 北京, Ñandú, e\u0301, \u00a0 and \u3000.",
    "<|im_start|>user\nHi<|im_end|>\n<start_of_turn>model\n<bos><eos>",
    "",
    " ",
    "a",
    "👩‍👩‍👧‍👦 ﬁ Ⅷ ½ ٣ \x00\x7f\u2028",
]
here = Path(__file__).parent


def fields(path):
    reader = gguf.GGUFReader(path)

    def get(key):
        field = reader.fields.get(key)
        return None if field is None else field.contents()

    return reader, get


def strip(path, out, keep):
    """A GGUF with no tensors and only the keys that `keep` wants."""
    reader, get = fields(path)
    writer = gguf.GGUFWriter(out, get("general.architecture"))
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or not keep(key):
            continue
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(key, get(key), kind, sub_type=field.types[-1])
        else:
            writer.add_key_value(key, get(key), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def added(tokens, types):
    return [AddedToken(t, special=k in (2, 3), normalized=False) for t, k in zip(tokens, types) if k in (2, 3, 4)]


def smollm2(path):
    _, get = fields(path)
    tokens, types = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ")) for m in get("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(added(tokens, types))
    return tokenizer


def gemma3(path):
    _, get = fields(path)
    tokens, types, scores = (get(f"tokenizer.ggml.{k}") for k in ("tokens", "token_type", "scores"))
    ids = {t: i for i, t in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores):
        for at in range(1, len(token)):
            if token[:at] in ids and token[at:] in ids:
                merges.append((token[:at], token[at:], score))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    model = models.BPE(ids, [m[:2] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens(added(tokens, types))
    return tokenizer


def record(tokenizer, reference):
    rows = []
    for text in TEXTS:
        row = {"text": text}
        for key, special_is_text in (("ids", True), ("ids_special", False)):
            tokenizer.encode_special_tokens = special_is_text
            row[key] = tokenizer.encode(text, add_special_tokens=False).ids
        rows.append(row)
    out = {"texts": rows}
    if reference:
        reference = json.loads(Path(reference).read_text())
        out["prompts"] = [{"text": c["prompt"], "ids": c["prompt_ids"]} for c in reference["cases"]]
        whole = reference["perplexity"]
        out["prompts"].append({"text": whole["text"], "ids": whole["token_ids"]})
    return out


def write(name, value):
    (here / name).write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    smol, gemma, references = sys.argv[1:]
    keep = lambda k: k.startswith("tokenizer.") or k == "general.name"
    strip(smol, here / "smollm2-vocab.gguf", keep)
    write("smollm2_ids.json", record(smollm2(smol), Path(references) / "smollm2.json"))
    write("gemma3-270m_ids.json", record(gemma3(gemma), Path(references) / "gemma3-270m.json"))
    write("demo_ids.json", record(Tokenizer.from_file(str(here / "demo" / "tokenizer.json")), None))
