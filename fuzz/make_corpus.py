"""Writes the seed corpora. Needs nothing but Python; small on purpose."""

import json
import struct
from pathlib import Path

root = Path(__file__).parent / "corpus"
SEPARATOR = b"\n=====\n"


def put(target, name, data):
    path = root / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def value(v):
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<Ii", 5, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    kind, body = (8, b"".join(text(x) for x in v)) if isinstance(v[0], str) else (6, struct.pack(f"<{len(v)}f", *v))
    if isinstance(v[0], int):
        kind, body = 5, struct.pack(f"<{len(v)}i", *v)
    return struct.pack("<IIQ", 9, kind, len(v)) + body


def gguf(keys, tensors=(), version=3, alignment=32):
    """`tensors`: name, dimensions innermost first, type number, bytes."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    out += b"".join(text(k) + value(v) for k, v in keys.items())
    offset, data = 0, b""
    for name, ne, kind, size in tensors:
        offset = -(-offset // alignment) * alignment
        out += text(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, offset)
        data = data.ljust(offset, b"\0") + bytes(size)
        offset += size
    return out.ljust(-(-len(out) // alignment) * alignment, b"\0") + data if tensors else out


tensors = [("token_embd.weight", [32, 4], 8, 136), ("norm", [5], 0, 20), ("x", [256, 1], 19, 50)]
model = {"general.architecture": "llama", "general.name": "n", "llama.block_count": 3, "eps": 1e-5, "b": True}
put("gguf_header", "small", gguf(model, tensors))
put("gguf_header", "v2", gguf(model, tensors[:1], version=2))
put("gguf_header", "arrays", gguf({"s": ["a", "", "ü"], "i": [1, -2], "f": [0.5]}))
put("gguf_header", "aligned", gguf({"general.alignment": 64}, tensors, alignment=64))
put("gguf_header", "template", gguf({"tokenizer.chat_template": "{{ bos_token }}", "tokenizer.ggml.tokens": ["a"]}))


nemotron = {
    "general.architecture": "nemotron_h_moe", "nemotron_h_moe.block_count": 3, "nemotron_h_moe.context_length": 64,
    "nemotron_h_moe.embedding_length": 32, "nemotron_h_moe.vocab_size": 16, "nemotron_h_moe.attention.head_count": 4,
    "nemotron_h_moe.attention.head_count_kv": [0, 2, 0], "nemotron_h_moe.attention.key_length": 8,
    "nemotron_h_moe.attention.layer_norm_rms_epsilon": 1e-5, "nemotron_h_moe.feed_forward_length": [0, 0, 8],
    "nemotron_h_moe.ssm.conv_kernel": 4, "nemotron_h_moe.ssm.inner_size": 32, "nemotron_h_moe.ssm.state_size": 16,
    "nemotron_h_moe.ssm.time_step_rank": 4, "nemotron_h_moe.expert_count": 4, "nemotron_h_moe.expert_used_count": 2,
}
put("gguf_header", "nemotron_h", gguf(nemotron, [("token_embd.weight", [32, 16], 0, 2048), ("blk.2.ffn_gate_inp.weight", [32, 4], 0, 512)]))


def header(tensors, data):
    h = json.dumps(tensors).encode()
    return struct.pack("<Q", len(h)) + h + bytes(data)


one = header({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 8)
two = header(
    {
        "__metadata__": {"format": "pt"},
        "u": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "v": {"dtype": "U8", "shape": [4], "data_offsets": [12, 16]},
    },
    16,
)
put("safetensors_index", "one", one)
put("safetensors_index", "two", two)
index = json.dumps({"metadata": {"total_size": 24}, "weight_map": {"t": "a", "u": "b", "v": "b"}}).encode()
put("safetensors_index", "shards", SEPARATOR.join([index, one, two]))
put("safetensors_index", "traversal", SEPARATOR.join([b'{"weight_map":{"t":"../a"}}', one]))

put("config_json", "llama", '{"model_type": "llama", "rope_scaling": {"factor": 8.0}, "eos_token_id": [1, 2], "x": null}')
put("config_json", "infinity", '{"time_step_limit": [0.0, Infinity], "a": -Infinity, "b": NaN, "s": "\\" Infinity"}')
put("config_json", "float", '{"time_step_limit": [0.0, {"__float__": "Infinity"}]}')
put("config_json", "nested", '{"a": ' + "[" * 60 + "]" * 60 + "}")

hybrid = {
    "model_type": "nemotron_h", "hybrid_override_pattern": "MEM*-E", "num_hidden_layers": 6, "hidden_size": 64, "vocab_size": 256,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4, "intermediate_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 128, "n_group": 2, "topk_group": 1, "moe_latent_size": 32,
}
mlx = {"group_size": 32, "bits": 4, "mode": "affine", "lm_head": {"bits": 8, "group_size": 64}, "backbone.embeddings": False}
modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*mixer.q_proj*"]}
weights = {"type": "float", "num_bits": 8, "strategy": "channel"}
groups = {"g": {"targets": ["Linear", "re:.*up_proj$"], "weights": weights}}
compressed = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["re:.*gate"]}
put("config_json", "nemotron_h", json.dumps(hybrid))
put("config_json", "nemotron_h_mlx", json.dumps({**hybrid, "quantization": mlx}))
put("config_json", "nemotron_h_modelopt", json.dumps({**hybrid, "quantization_config": modelopt}))
put("config_json", "nemotron_h_compressed", json.dumps({**hybrid, "quantization_config": compressed}))
mamba2 = {"model_type": "mamba2", "hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "num_hidden_layers": 2}
put("config_json", "mamba2", json.dumps(mamba2)[:-1] + ', "time_step_limit": [0.0, Infinity]}')

alphabet = []
fresh = 0x100
for b in range(256):
    printable = 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b
    alphabet.append(chr(b) if printable else chr(fresh))
    fresh += not printable
bpe = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": alphabet + ["He", "ll", "<think>", "<|im_end|>"],
    "tokenizer.ggml.token_type": [1] * 258 + [4, 3],
    "tokenizer.ggml.merges": ["H e", "l l"],
    "tokenizer.ggml.eos_token_id": 259,
}
put("tokenizer_vocab", "bpe", gguf(bpe))
short = {**bpe, "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"], "tokenizer.ggml.token_type": [1, 1, 1, 3]}
put("tokenizer_vocab", "bpe_short", gguf({**short, "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 3}))
pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["▁", "l", "o", "lo", "llo", "▁w"]
spm = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": pieces,
    "tokenizer.ggml.scores": [0.0] * 259 + [-1.0, -9.0, -9.0, -2.0, -3.0, -4.0],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 6,
}
put("tokenizer_vocab", "spm", gguf(spm))
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
special = {"id": 3, "content": "<s>", "special": True, **added}
template = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}},
}
hf = {
    "version": "1.0",
    "added_tokens": [special],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": level,
    "post_processor": template,
    "decoder": level,
    "model": {"type": "BPE", "vocab": {"l": 0, "o": 1, "lo": 2, "<s>": 3}, "merges": ["l o"], "byte_fallback": False},
}
config = b'{"bos_token": "<s>", "eos_token": {"content": "<s>"}, "add_bos_token": true}'
put("tokenizer_vocab", "json", json.dumps(hf).encode() + SEPARATOR + config)
split = {"type": "Split", "pattern": {"Regex": "\\\\s+(?!\\\\S)|\\\\p{L}+"}, "behavior": "Isolated", "invert": False}
sentence = {
    **hf,
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, {"type": "Digits", "individual_digits": True}]},
    "post_processor": None,
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["l", -1], ["lo", -2], ["<s>", 0]], "byte_fallback": False},
}
put("tokenizer_vocab", "unigram", json.dumps(sentence))

put("chat_template", "chatml", "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
put("chat_template", "raises", "{%- if messages[0].role != 'user' -%}{{ raise_exception('no ' ~ messages[0].role) }}{%- endif -%}")
put("chat_template", "methods", "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}{{ m.content.strip().split(' ')[0] | upper }}{% endfor %}{{ ns.n }}{{ strftime_now('%d %b %Y') }}")
put("chat_template", "macros", "{% macro f(x, n=2) %}{% if n %}{{ f(x, n - 1) }}{% endif %}{{ x | tojson(indent=2) }}{% endmacro %}{{ f(messages) }}{% generation %}a{% endgeneration %}")
put("chat_template", "loops", "{% for i in range(100) %}{% for m in messages %}{{ loop.index }}{{ 'x' * i }}{% break %}{% endfor %}{% endfor %}")
