"""What the scripts that write golden GGUF files share: safetensors in and out, the parts of a file that are the same for
every family, and the answers that go with it. See hybrid_gguf.py for how such a script is run.
"""

import json
import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFWriter, quants

DATA = Path(__file__).resolve().parent.parent / "data" / "golden"


def read_safetensors(path, skip=()):
    """name -> (float32 array, stored type), but for the names to skip."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    out = {}
    for name, info in header.items():
        if name in skip:
            continue
        start, end = (8 + length + o for o in info["data_offsets"])
        data = raw[start:end]
        if info["dtype"] == "BF16":
            array = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data, {"F32": "<f4", "I32": "<i4"}[info["dtype"]])
        out[name] = (array.reshape(info["shape"]), info["dtype"])
    return out


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        kind = {"float32": "F32", "int32": "I32"}[str(array.dtype)]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


# GGUF --------------------------------------------------------------------------------------------------------------


def config_of(family):
    return json.loads((DATA / family / "config.json").read_text().replace("Infinity", "1e999"))


def new_writer(family, target, arch):
    (DATA / target).mkdir(exist_ok=True)
    writer = GGUFWriter(DATA / target / "model.gguf", arch)
    writer.add_name(f"golden {family}")
    return writer


def add_tokenizer(writer, vocab):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"<{i}>" for i in range(vocab)])
    writer.add_token_types([1] * vocab)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write_tensors(writer, tensors, stays_f32, mixed=None):
    """Closes the file with `tensors`, name -> (array, stored type); returns name -> the type it has there.

    As the public writer does, what `stays_f32(name, array)` says is F32. The rest keeps the source's type, or has the
    one that `mixed` names, by the tensor's name or by its name without "blk.N.".
    """
    types = {}
    for name in sorted(tensors):
        array, stored = tensors[name]
        kind = Type.F32 if stays_f32(name, array) or stored == "F32" else Type.BF16
        if mixed and not stays_f32(name, array):
            kind = mixed[name if name in mixed else name.split(".", 2)[2]]
        types[name] = kind.name
        if kind == Type.F32:
            writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
        else:
            writer.add_tensor(name, quants.quantize(np.ascontiguousarray(array, np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return types


def read_tensors(path):
    """name -> float64 array, dequantised by the gguf package."""
    out = {}
    for tensor in GGUFReader(path).tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        data = quants.dequantize(tensor.data, tensor.tensor_type)
        out[tensor.name] = np.asarray(data, np.float64).reshape(shape)
    return out


# Answers -----------------------------------------------------------------------------------------------------------


def silu(x):
    return x / (1 + np.exp(-x))


def answers(model, source):
    """What the model says to the source's prompts, and the smallest gap between its two best tokens."""
    out, gap = {}, np.inf
    for name, (ids, _) in source.items():
        if name.startswith("prompt.") and name.endswith(".input_ids"):
            rows = source[name.replace("input_ids", "logits")][0].shape[0]
            out[name] = ids
            out[name.replace("input_ids", "logits")] = model(ids)[-rows:].astype(np.float32)
    ids = list(source["decode.prompt_ids"][0])
    logits, tokens = [], []
    for _ in range(len(source["decode.token_ids"][0])):
        row = model(np.array(ids))[-1]
        best = np.sort(row)
        gap = min(gap, best[-1] - best[-2])
        logits.append(row)
        tokens.append(int(np.argmax(row)))
        ids.append(tokens[-1])
    out["decode.prompt_ids"] = source["decode.prompt_ids"][0]
    out["decode.token_ids"] = np.array(tokens, np.int32)
    out["decode.logits"] = np.array(logits, np.float32)
    return out, gap


def difference(ours, source):
    prompts = [n for n in ours if n.endswith("logits") and n.startswith("prompt.")]
    return max(float(np.abs(ours[n] - source[n][0]).max()) for n in prompts)


def finish(generator, target, source_family, expected, types, what, noise):
    write_safetensors(DATA / target / "expected.safetensors", expected)
    meta = {
        "expected_compute_dtype": "float32" if not noise else "float64",
        "family": source_family,
        "generator": f"tests/golden/{generator}",
        "noise_max_abs": noise,
        "source_model": source_family,
        "tensor_types": types,
        "versions": {"gguf": "0.19.0"},
        "what": what,
    }
    (DATA / target / "meta.json").write_text(json.dumps(meta, indent=1, sort_keys=True) + "\n")


def copied(family):
    source = read_safetensors(DATA / family / "expected.safetensors")
    return {n: a for n, (a, _) in source.items() if n.startswith(("prompt.", "decode."))}
