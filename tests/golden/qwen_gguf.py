"""Writes the GGUF files of tests/data/golden/gguf_{qwen3_moe,qwen3_next,qwen3_5,qwen3_5_moe} and what they must answer.

    pip install gguf==0.19.0 numpy
    python tests/golden/qwen_gguf.py

There is no randomness: the weights are those of the golden safetensors beside, the prompts theirs too.

What the public writer does (llama.cpp: conversion/qwen.py and base.py; its reader: src/models/qwen3moe.cpp,
qwen3next.cpp, qwen35.cpp, qwen35moe.cpp), and this script after it; names come from gguf's own tensor_mapping:

* Experts stacked: ffn_{gate,up,down}_exps [E, out, in]; router ffn_gate_inp, F32. Shared expert ffn_*_shexp; its gate
  ffn_gate_inp_shexp is [1, D] in what the writer leaves, [D] in what the quantiser rewrites (the mixed file here).
* But in qwen3moe, 1 is added to every norm weight except that of the gated norm.
* ssm_a = -exp(A_log); dt_bias -> ssm_dt.bias; conv1d.weight [C, 1, K] -> ssm_conv1d.weight [C, K]. None is quantised.
* qwen3next: in_proj_qkvz, grouped by key heads, becomes attn_qkv (all q, all k, all v) and attn_gate (all z);
  in_proj_ba stays as it is, ssm_ba. The reader repeats keys for neighbouring value heads.
* qwen35 and qwen35moe: value heads, which stand grouped by key heads, come to take turns (head k·R + r of Hg × R moves
  to r·Hg + k) in the rows of v, z, a and b, in A and dt_bias, in the channels of v of the convolution and in the columns
  of out_proj; the reader repeats all keys for each turn.
* q_proj stays as it is, queries and gates by heads, and no rows are permuted for the rope.
* ssm.time_step_rank is the number of value heads, group_count that of key heads, state_size the key's size, inner_size
  all values; full_attention_interval; rope.dimension_count the rotated channels; rope.dimension_sections four numbers.
* Draft layers count among the blocks, last, with nextn_predict_layers (gguf_qwen3_5 has one; nothing reads it).

gguf_qwen3_5_moe mixes tensor types, so its answers are those of the dequantised tensors in the float64 forward pass
below, written after the reader. That pass first has to reproduce the answers of every source from the unquantised
file. The others hold the source's weights exactly and keep its answers.
"""

import gguf
import numpy as np
from common import DATA, add_tokenizer, answers, config_of, copied, difference, finish, new_writer, read_safetensors
from common import read_tensors, silu, write_tensors
from gguf import MODEL_ARCH as Arch
from gguf import GGMLQuantizationType as Type

GENERATOR = "qwen_gguf.py"

# Conversions -------------------------------------------------------------------------------------------------------


def take_turns(array, axis, c, size):
    """Value heads of `size` along the axis, from grouped by key heads to in turns."""
    keys = c["linear_num_key_heads"]
    shape = array.shape[:axis] + (keys, c["linear_num_value_heads"] // keys, size) + array.shape[axis + 1 :]
    return array.reshape(shape).swapaxes(axis, axis + 1).reshape(array.shape)


def in_turns(part, array, c):
    keys, size = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"], c["linear_value_head_dim"]
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        return np.concatenate([array[:keys], take_turns(array[keys:], 0, c, size)])
    if part == "in_proj_z.weight":
        return take_turns(array, 0, c, size)
    if part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        return take_turns(array, 0, c, 1)
    if part == "out_proj.weight":
        return take_turns(array, 1, c, size)
    return array


def apart(array, c):
    """in_proj_qkvz as q, k, v and as z."""
    keys, size = c["linear_num_key_heads"], c["linear_key_head_dim"]
    values = c["linear_num_value_heads"] // keys * c["linear_value_head_dim"]
    heads = array.reshape(keys, 2 * size + 2 * values, -1)
    parts = np.split(heads, [size, 2 * size, 2 * size + values], axis=1)
    q, k, v, z = (p.reshape(-1, array.shape[1]) for p in parts)
    return np.concatenate([q, k, v]), z


def converted(source, c, arch, blocks, flat_gate):
    """GGUF name -> (array, stored type of the source), values and shapes as the writer has them."""
    names = gguf.get_tensor_name_map(arch, blocks)
    out, stacks = {}, {}

    def put(name, array, kind):
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new is not None and new not in out, name
        out[new] = (array, kind)

    for name, (array, kind) in source.items():
        if ".mlp.experts." in name:
            before, expert, side, _ = name.rsplit(".", 3)
            stacks.setdefault(f"{before}.{side}.weight", {})[int(expert)] = (array, kind)
            continue
        part = name.partition(".linear_attn.")[2]
        if part == "in_proj_qkvz.weight":
            layer = name.split(".")[2]
            qkv, z = apart(array, c)
            out[f"blk.{layer}.attn_qkv.weight"], out[f"blk.{layer}.attn_gate.weight"] = (qkv, kind), (z, kind)
            continue
        if part and arch in (Arch.QWEN35, Arch.QWEN35MOE):
            array = in_turns(part, array, c)
        if part == "A_log":
            array = -np.exp(array)
        elif part == "dt_bias":
            name = name.replace("dt_bias", "dt_proj.bias")
        elif part == "conv1d.weight":
            array = array.reshape(array.shape[0], -1)
        elif name.endswith("norm.weight") and part != "norm.weight" and arch != Arch.QWEN3MOE:
            array = array + np.float32(1)
        if flat_gate and name.endswith("shared_expert_gate.weight"):
            array = array.reshape(-1)
        put(name, array, kind)
    for name, experts in stacks.items():
        put(name, np.stack([experts[i][0] for i in range(len(experts))]), experts[0][1])
    return out


def draft_layer(tensors, like, at, hidden):
    """A draft layer after the model's own: attention and MLP of another, and what joins it to the rest."""
    for name in [n for n in tensors if n.startswith(f"blk.{like}.")]:
        tensors[name.replace(f"blk.{like}.", f"blk.{at}.")] = tensors[name]
    for name, shape in [("eh_proj", (hidden, 2 * hidden)), ("enorm", hidden), ("hnorm", hidden), ("shared_head_norm", hidden)]:
        tensors[f"blk.{at}.nextn.{name}.weight"] = (np.ones(shape, np.float32), "F32" if shape == hidden else "BF16")


F32 = ("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight")


def stays_f32(name, array):
    return array.ndim == 1 or name.endswith(F32) or not name.endswith(".weight")


# Chosen so that no two experts and no two tokens come so close that rounding could swap them (asserted below).
MIXED = {
    "token_embd.weight": Type.Q5_0,
    "output.weight": Type.F16,
    "attn_q.weight": Type.Q4_1,
    "attn_k.weight": Type.Q8_0,
    "attn_v.weight": Type.Q5_0,
    "attn_output.weight": Type.Q8_0,
    "attn_qkv.weight": Type.Q5_1,
    "attn_gate.weight": Type.Q4_1,
    "ssm_alpha.weight": Type.Q8_0,
    "ssm_beta.weight": Type.F32,
    "ssm_out.weight": Type.Q5_0,
    "ffn_gate_exps.weight": Type.Q5_1,
    "ffn_up_exps.weight": Type.Q5_1,
    "ffn_down_exps.weight": Type.Q8_0,
    "ffn_gate_shexp.weight": Type.Q5_0,
    "ffn_up_shexp.weight": Type.Q8_0,
    "ffn_down_shexp.weight": Type.MXFP4,
}


def write(family, target, arch, drafts=0, mixed=False):
    c = config_of(family)
    blocks = c["num_hidden_layers"] + drafts
    tensors = converted(read_safetensors(DATA / family / "model.safetensors"), c, arch, blocks, flat_gate=mixed)
    for i in range(drafts):
        draft_layer(tensors, c["num_hidden_layers"] - 1, c["num_hidden_layers"] + i, c["hidden_size"])
    writer = new_writer(family, target, gguf.MODEL_ARCH_NAMES[arch])
    rope = c.get("rope_parameters") or c
    writer.add_block_count(blocks)
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    if "intermediate_size" in c:
        writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections(rope["mrope_section"] + [0])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if "num_experts" in c:
        writer.add_expert_count(c["num_experts"])
        writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    if "num_experts" in c:
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
        if "shared_expert_intermediate_size" in c:
            writer.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if arch != Arch.QWEN3MOE:
        writer.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(c["linear_key_head_dim"])
        writer.add_ssm_group_count(c["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(c["linear_num_value_heads"])
        writer.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        writer.add_full_attention_interval(c["full_attention_interval"])
        writer.add_rope_dimension_count(int(c["head_dim"] * rope["partial_rotary_factor"]))
    if drafts:
        writer.add_nextn_predict_layers(drafts)
    add_tokenizer(writer, c["vocab_size"])
    return c, write_tensors(writer, tensors, stays_f32, MIXED if mixed else None)


# The forward pass, from tensors as GGUF has them, one token after the other, in float64 ------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Model:
    def __init__(self, path, config, arch):
        self.c, self.arch = config, arch
        self.t = read_tensors(path)
        self.smallest_gap = np.inf

    def rms(self, x, weight):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.c["rms_norm_eps"]) * weight

    def rope(self, x):
        """[tokens, heads, channels]: halves of the first channels."""
        rope = self.c.get("rope_parameters") or self.c
        rotated = int(x.shape[2] * rope.get("partial_rotary_factor", 1))
        turn = np.outer(np.arange(len(x)), rope["rope_theta"] ** (-np.arange(0, rotated, 2) / rotated))[:, None]
        a, b, rest = np.split(x, [rotated // 2, rotated], axis=2)
        cos, sin = np.cos(turn), np.sin(turn)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=2)

    def attention(self, l, x):
        c, t = self.c, lambda n: self.t[f"blk.{l}.{n}.weight"]
        heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        split = lambda n, h: (x @ t(n).T).reshape(len(x), h, -1)
        q, k, v = split("attn_q", heads), split("attn_k", kv), split("attn_v", kv)
        gate = 1
        if self.arch != Arch.QWEN3MOE:
            q, gate = q[..., :dim], sigmoid(q[..., dim:])
        q, k = self.rope(self.rms(q, t("attn_q_norm"))), self.rope(self.rms(k, t("attn_k_norm")))
        k, v = np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores = np.where(np.tril(np.ones((len(x), len(x)), bool)), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return (np.einsum("hqk,khd->qhd", scores, v) * gate).reshape(len(x), -1) @ t("attn_output").T

    def delta(self, l, x):
        c, t = self.c, lambda n: self.t[f"blk.{l}.{n}"]
        heads, keys = c["linear_num_value_heads"], c["linear_num_key_heads"]
        key, value = c["linear_key_head_dim"], c["linear_value_head_dim"]
        mixed, z = x @ t("attn_qkv.weight").T, (x @ t("attn_gate.weight").T).reshape(len(x), heads, value)
        if self.arch == Arch.QWEN3NEXT:
            ba = (x @ t("ssm_ba.weight").T).reshape(len(x), keys, 2, heads // keys)
            b, a = ba[:, :, 0].reshape(len(x), heads), ba[:, :, 1].reshape(len(x), heads)
            spread = lambda k: np.repeat(k, heads // keys, 1)
        else:
            b, a = x @ t("ssm_beta.weight").T, x @ t("ssm_alpha.weight").T
            spread = lambda k: np.tile(k, (1, heads // keys, 1))
        taps = t("ssm_conv1d.weight")
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed])
        mixed = silu(sum(padded[i : i + len(x)] * taps[:, i] for i in range(taps.shape[1])))
        q, k, v = np.split(mixed, [keys * key, 2 * keys * key], axis=1)
        unit = lambda k: k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
        q, k = (spread(unit(m.reshape(len(x), keys, key))) for m in (q, k))
        q, v = q / np.sqrt(key), v.reshape(len(x), heads, value)
        beta, decay = sigmoid(b), np.exp(t("ssm_a") * np.logaddexp(0, a + t("ssm_dt.bias")))
        state, out = np.zeros((heads, key, value)), np.zeros((len(x), heads, value))
        for i in range(len(x)):
            state = state * decay[i][:, None, None]
            d = beta[i][:, None] * (v[i] - np.einsum("hkv,hk->hv", state, k[i]))
            state = state + k[i][:, :, None] * d[:, None, :]
            out[i] = np.einsum("hkv,hk->hv", state, q[i])
        out = self.rms(out, t("ssm_norm.weight")) * silu(z)
        return out.reshape(len(x), -1) @ t("ssm_out.weight").T

    def mlp(self, l, x, end):
        t = lambda n: self.t[f"blk.{l}.ffn_{n}{end}.weight"]
        return (silu(x @ t("gate").T) * (x @ t("up").T)) @ t("down").T

    def experts(self, l, x):
        c, t = self.c, lambda n: self.t[f"blk.{l}.ffn_{n}.weight"]
        top, out = c["num_experts_per_tok"], np.zeros_like(x)
        logits = x @ t("gate_inp").T
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        for i in range(len(x)):
            order = np.argsort(-scores[i], kind="stable")
            self.smallest_gap = min(self.smallest_gap, scores[i][order[top - 1]] - scores[i][order[top]])
            for e, weight in zip(order[:top], scores[i][order[:top]] / scores[i][order[:top]].sum()):
                hidden = silu(t("gate_exps")[e] @ x[i]) * (t("up_exps")[e] @ x[i])
                out[i] += weight * (t("down_exps")[e] @ hidden)
        if "shared_expert_intermediate_size" in c:
            gate = sigmoid(x @ t("gate_inp_shexp").reshape(-1))
            out += gate[:, None] * self.mlp(l, x, "_shexp")
        return out

    def __call__(self, ids):
        x = self.t["token_embd.weight"][ids]
        after = "ffn_norm" if self.arch == Arch.QWEN3MOE else "post_attention_norm"
        for l in range(self.c["num_hidden_layers"]):
            h = self.rms(x, self.t[f"blk.{l}.attn_norm.weight"])
            attends = self.arch == Arch.QWEN3MOE or (l + 1) % self.c["full_attention_interval"] == 0
            x = x + (self.attention(l, h) if attends else self.delta(l, h))
            h = self.rms(x, self.t[f"blk.{l}.{after}.weight"])
            x = x + (self.experts(l, h) if "num_experts" in self.c else self.mlp(l, h, ""))
        return self.rms(x, self.t["output_norm.weight"]) @ self.t["output.weight"].T


def main():
    for family, target, arch, drafts, mixed in [
        ("qwen3_moe", "gguf_qwen3_moe", Arch.QWEN3MOE, 0, False),
        ("qwen3_next", "gguf_qwen3_next", Arch.QWEN3NEXT, 0, False),
        ("qwen3_5_text", "gguf_qwen3_5", Arch.QWEN35, 1, False),
        ("qwen3_5_moe_text", "gguf_qwen3_5_moe", Arch.QWEN35MOE, 0, True),
    ]:
        source = read_safetensors(DATA / family / "expected.safetensors")
        c, types = write(family, target, arch, drafts)
        plain, _ = answers(Model(DATA / target / "model.gguf", c, arch), source)
        off = difference(plain, source)
        print(family, "forward pass against the reference:", off)
        assert off < 1e-4, off
        if not mixed:
            finish(GENERATOR, target, family, copied(family), types, "the source's weights exactly, and its answers", {})
            continue
        c, types = write(family, target, arch, drafts, mixed=True)
        model = Model(DATA / target / "model.gguf", c, arch)
        ours, gap = answers(model, source)
        noise = {
            "forward_pass_vs_reference_unquantized": off,
            "min_greedy_gap": float(gap),
            "min_router_gap": float(model.smallest_gap),
            "quantized_vs_original_model": difference(ours, source),
        }
        print(noise)
        assert gap > 2e-3 and model.smallest_gap > 1e-4, noise
        what = "tensors of mixed types, dequantised by gguf, run in float64 by the generator's forward pass"
        finish(GENERATOR, target, family, ours, types, what, noise)


if __name__ == "__main__":
    main()
