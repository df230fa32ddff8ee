"""Writes the GGUF files of tests/data/golden/gguf_{gemma4_dense,gemma4_ple,gemma4_moe,gpt_oss,gpt_oss_mxfp4} and what they
must answer.

    pip install gguf==0.19.0 numpy
    python tests/golden/gemma_gguf.py

There is no randomness: the weights are those of the golden safetensors beside, the prompts theirs too.

What the public writer does (llama.cpp: conversion/gemma.py, gpt_oss.py, base.py; names: gguf-py constants.py and
tensor_mapping.py; its readers: src/models/gemma4.cpp, openai-moe.cpp), and this script after it:

* gemma4: no value changes; norms have nothing added. A tensor rope_freqs of divisors for the full layers, 1 for the
  pairs that turn and 1e30 for the others. layer_scalar -> layer_output_scale.weight, router.scale ->
  ffn_gate_inp.scale, router.per_expert_scale -> ffn_down_exps.scale; experts keep their gates and ups in one tensor.
  head_count_kv is an array where the full layers have another number, feed_forward_length where some are twice as wide.
* gpt-oss: gates and ups, interleaved in the source, become two tensors, biases too; plain experts are transposed. MXFP4
  blocks are a scale, then 16 bytes whose low halves are the first 16 values: the source has neighbours in a byte. The
  writer drops YaRN's `truncate` and the limit of the gates; the reader has 7 and 1.702 for the latter.
* Vectors, what is not called .weight, and the router are F32.

The writer names the tokenizer of gemma4 "gemma4"; here each file has the same placeholder vocabulary.

gguf_gpt_oss mixes tensor types and is bounded by 7, not by its source's 2.5: its answers are those of the dequantised
tensors in the float64 forward pass below, which first has to reproduce the source's, unquantised and with its bound. The
others hold the source's weights exactly and keep its answers.
"""

import json
import struct

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import RopeScalingType

from common import DATA, add_tokenizer, answers, config_of, copied, difference, finish, new_writer
from common import read_safetensors, read_tensors, write_tensors

# Names -------------------------------------------------------------------------------------------------------------

OUTER = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
GEMMA = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "layer_scalar": "layer_output_scale.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
}
GPT_OSS = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.sinks": "attn_sinks.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "mlp.router.weight": "ffn_gate_inp.weight",
    "mlp.router.bias": "ffn_gate_inp.bias",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
}
for side, new in [("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"), ("o_proj", "attn_output")]:
    for end in ["weight", "bias"]:
        GPT_OSS[f"self_attn.{side}.{end}"] = f"{new}.{end}"


def stays_f32(name, array):
    return array.ndim == 1 or not name.endswith(".weight") or "ffn_gate_inp" in name


def layer_of(name):
    """("3", "mlp.up_proj.weight"), or (None, "norm.weight") outside the layers."""
    name = name.removeprefix("model.")
    return name.split(".", 2)[1:] if name.startswith("layers.") else (None, name)


# gemma4 ------------------------------------------------------------------------------------------------------------


def gemma(family, target):
    c = config_of(family)
    tensors = {}
    for name, tensor in read_safetensors(DATA / family / "model.safetensors").items():
        layer, part = layer_of(name)
        tensors[OUTER[part] if layer is None else f"blk.{layer}.{GEMMA[part]}"] = tensor
    full = c["rope_parameters"]["full_attention"]
    turning = int(c["global_head_dim"] * full["partial_rotary_factor"] / 2)
    divisors = [1.0] * turning + [1e30] * (c["global_head_dim"] // 2 - turning)
    tensors["rope_freqs.weight"] = (np.array(divisors, np.float32), "F32")

    layers, sharing = c["num_hidden_layers"], c["num_kv_shared_layers"]
    sliding = [kind == "sliding_attention" for kind in c["layer_types"]]
    writer = new_writer(family, target, "gemma4")
    writer.add_block_count(layers)
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    width = c["intermediate_size"]
    if c["use_double_wide_mlp"]:
        width = [width if i < layers - sharing else 2 * width for i in range(layers)]
    writer.add_feed_forward_length(width)
    writer.add_head_count(c["num_attention_heads"])
    heads = c["num_key_value_heads"]
    if c["num_global_key_value_heads"] is not None:
        heads = [heads if s else c["num_global_key_value_heads"] for s in sliding]
    writer.add_head_count_kv(heads)
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if c["num_experts"] is not None:
        writer.add_expert_count(c["num_experts"])
        writer.add_expert_used_count(c["top_k_experts"])
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_final_logit_softcapping(c["final_logit_softcapping"])
    writer.add_sliding_window(c["sliding_window"])
    writer.add_shared_kv_layers(sharing)
    writer.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    writer.add_sliding_window_pattern(sliding)
    writer.add_key_length(c["global_head_dim"])
    writer.add_value_length(c["global_head_dim"])
    writer.add_key_length_swa(c["head_dim"])
    writer.add_value_length_swa(c["head_dim"])
    writer.add_rope_dimension_count(c["global_head_dim"])
    writer.add_rope_dimension_count_swa(c["head_dim"])
    add_tokenizer(writer, c["vocab_size"])
    types = write_tensors(writer, tensors, stays_f32)
    what = "the source's weights exactly, and its answers"
    finish("gemma_gguf.py", target, family, copied(family), types, what, {})


# gpt-oss -----------------------------------------------------------------------------------------------------------


def bytes_of(path):
    """name -> the uint8 tensors of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    out = {}
    for name, info in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__" and info["dtype"] == "U8":
            start, end = (8 + length + o for o in info["data_offsets"])
            out[name] = np.frombuffer(raw[start:end], np.uint8).reshape(info["shape"])
    return out


def blocks(codes, scales):
    """[E, rows, blocks, 16] of neighbours and [E, rows, blocks] -> rows of GGUF's blocks."""
    values = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 32)
    codes = values[..., :16] | values[..., 16:] << 4
    rows = np.concatenate([scales[..., None], codes], -1)
    return rows.reshape(*rows.shape[:-2], -1)


def gpt_tensors(family):
    """name -> (array, stored type), and name -> rows of MXFP4 blocks."""
    path = DATA / family / "model.safetensors"
    packed = bytes_of(path)
    tensors, rows = {}, {}
    for name, (array, kind) in read_safetensors(path, skip=packed).items():
        layer, part = layer_of(name)
        if layer is None:
            tensors["output.weight" if name == "lm_head.weight" else OUTER[part]] = (array, kind)
            continue
        blk = f"blk.{layer}."
        if part == "mlp.experts.gate_up_proj_bias":
            tensors[blk + "ffn_gate_exps.bias"] = (array[:, ::2], kind)
            tensors[blk + "ffn_up_exps.bias"] = (array[:, 1::2], kind)
        elif part == "mlp.experts.gate_up_proj":
            array = array.transpose(0, 2, 1)
            tensors[blk + "ffn_gate_exps.weight"] = (array[:, ::2], kind)
            tensors[blk + "ffn_up_exps.weight"] = (array[:, 1::2], kind)
        elif part == "mlp.experts.down_proj":
            tensors[blk + "ffn_down_exps.weight"] = (array.transpose(0, 2, 1), kind)
        else:
            tensors[blk + GPT_OSS[part]] = (array, kind)
    for name, codes in packed.items():
        if not name.endswith("_blocks"):
            continue
        layer, part = layer_of(name)
        scales, blk = packed[name.replace("_blocks", "_scales")], f"blk.{layer}."
        if "down" in part:
            rows[blk + "ffn_down_exps.weight"] = blocks(codes, scales)
        else:
            rows[blk + "ffn_gate_exps.weight"] = blocks(codes[:, ::2], scales[:, ::2])
            rows[blk + "ffn_up_exps.weight"] = blocks(codes[:, 1::2], scales[:, 1::2])
    return tensors, rows


# Chosen so that no two experts and no two tokens come so close that rounding could swap them (asserted below).
MIXED = {
    "token_embd.weight": Type.Q8_0,
    "output.weight": Type.BF16,
    "attn_q.weight": Type.Q8_0,
    "attn_k.weight": Type.Q5_1,
    "attn_v.weight": Type.Q8_0,
    "attn_output.weight": Type.Q5_0,
    "ffn_gate_exps.weight": Type.Q8_0,
    "ffn_up_exps.weight": Type.Q8_0,
    "ffn_down_exps.weight": Type.F16,
}


def gpt_oss(family, target, mixed=None):
    c = config_of(family)
    tensors, rows = gpt_tensors(family)
    yarn = c["rope_scaling"]
    writer = new_writer(family, target, "gpt-oss")
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(yarn["factor"])
    writer.add_rope_scaling_orig_ctx_len(yarn["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(yarn["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(yarn["beta_slow"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_expert_count(c["num_local_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_sliding_window(c["sliding_window"])
    writer.add_expert_feed_forward_length(c["intermediate_size"])
    add_tokenizer(writer, c["vocab_size"])
    for name, data in rows.items():
        writer.add_tensor(name, data, raw_dtype=Type.MXFP4)
    types = write_tensors(writer, tensors, stays_f32, mixed)
    return types | {name: "MXFP4" for name in rows}


class GptOss:
    """The forward pass, from tensors as GGUF has them, in float64."""

    def __init__(self, path, config, limit):
        self.c, self.limit = config, limit
        self.t = read_tensors(path)
        self.smallest_gap = np.inf
        yarn, size, theta = config["rope_scaling"], config["head_dim"], config["rope_theta"]
        turns = lambda b: size * np.log(yarn["original_max_position_embeddings"] / (2 * np.pi * b)) / (2 * np.log(theta))
        low, high = max(turns(yarn["beta_fast"]), 0), min(turns(yarn["beta_slow"]), size - 1)
        i = np.arange(size // 2)
        slow = np.clip((i - low) / (high - low), 0, 1)
        plain = theta ** (-2 * i / size)
        self.frequencies = plain * (1 - slow) + plain / yarn["factor"] * slow
        self.growth = 0.1 * np.log(yarn["factor"]) + 1

    def rms(self, x, weight):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.c["rms_norm_eps"]) * weight

    def rotate(self, x):
        angles = np.arange(len(x))[:, None, None] * self.frequencies
        cos, sin = np.cos(angles) * self.growth, np.sin(angles) * self.growth
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, l, x):
        c, t = self.c, lambda n: self.t[f"blk.{l}.{n}"]
        heads, kv, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        split = lambda n, h: (x @ t(f"{n}.weight").T + t(f"{n}.bias")).reshape(len(x), h, size)
        q, k, v = self.rotate(split("attn_q", heads)), self.rotate(split("attn_k", kv)), split("attn_v", kv)
        k, v = np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
        ago = np.arange(len(x))[:, None] - np.arange(len(x))
        seen = (ago >= 0) & (ago < c["sliding_window"] if l % 2 == 0 else True)
        sink = np.broadcast_to(t("attn_sinks.weight")[:, None, None], (heads, len(x), 1))
        scores = np.concatenate([np.where(seen, scores, -np.inf), sink], -1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores = (scores / scores.sum(-1, keepdims=True))[..., :-1]
        out = np.einsum("hqk,khd->qhd", scores, v).reshape(len(x), -1)
        return out @ t("attn_output.weight").T + t("attn_output.bias")

    def experts(self, l, x):
        t, top = lambda n: self.t[f"blk.{l}.{n}"], self.c["num_experts_per_tok"]
        logits = x @ t("ffn_gate_inp.weight").T + t("ffn_gate_inp.bias")
        out = np.zeros_like(x)
        for i, row in enumerate(logits):
            order = np.argsort(-row, kind="stable")
            self.smallest_gap = min(self.smallest_gap, row[order[top - 1]] - row[order[top]])
            weights = np.exp(row[order[:top]] - row[order[0]])
            for e, weight in zip(order[:top], weights / weights.sum()):
                part = lambda n, h: t(f"ffn_{n}_exps.weight")[e] @ h + t(f"ffn_{n}_exps.bias")[e]
                gate = np.minimum(part("gate", x[i]), self.limit)
                up = np.clip(part("up", x[i]), -self.limit, self.limit)
                out[i] += weight * part("down", (up + 1) * gate / (1 + np.exp(-1.702 * gate)))
        return out

    def __call__(self, ids):
        x = self.t["token_embd.weight"][ids]
        for l in range(self.c["num_hidden_layers"]):
            x = x + self.attention(l, self.rms(x, self.t[f"blk.{l}.attn_norm.weight"]))
            x = x + self.experts(l, self.rms(x, self.t[f"blk.{l}.post_attention_norm.weight"]))
        return self.rms(x, self.t["output_norm.weight"]) @ self.t["output.weight"].T


def main():
    for kind in ["dense", "ple", "moe"]:
        gemma(f"gemma4_text_{kind}", f"gguf_gemma4_{kind}")

    family, target = "gpt_oss_mxfp4", "gguf_gpt_oss_mxfp4"
    types = gpt_oss(family, target)
    source = read_safetensors(DATA / family / "expected.safetensors")
    ours, _ = answers(GptOss(DATA / target / "model.gguf", config_of(family), 7.0), source)
    off = difference(ours, source)
    assert off < 1e-4, off
    print(family, "forward pass against the reference:", off)
    what = "the source's weights exactly, and its answers"
    finish("gemma_gguf.py", target, family, copied(family), types, what, {})

    family, target = "gpt_oss", "gguf_gpt_oss"
    config, path = config_of(family), DATA / target / "model.gguf"
    source = read_safetensors(DATA / family / "expected.safetensors")
    gpt_oss(family, target)
    plain, _ = answers(GptOss(path, config, config["swiglu_limit"]), source)
    off = difference(plain, source)
    assert off < 1e-4, off
    print(family, "forward pass against the reference:", off)
    types = gpt_oss(family, target, MIXED)
    model = GptOss(path, config, 7.0)
    ours, gap = answers(model, source)
    noise = {
        "forward_pass_vs_reference_unquantized": off,
        "min_greedy_gap": float(gap),
        "min_router_gap": float(model.smallest_gap),
        "quantized_and_bounded_by_7_vs_original_model": difference(ours, source),
    }
    print(noise)
    assert gap > 2e-3 and model.smallest_gap > 1e-4, noise
    what = "tensors of mixed types, dequantised by gguf, run in float64 by the generator's forward pass"
    finish("gemma_gguf.py", target, family, ours, types, what, noise)


if __name__ == "__main__":
    main()
