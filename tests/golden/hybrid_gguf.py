"""Writes the GGUF files of tests/data/golden/gguf_{nemotron_h,nemotron_h_latent,mamba2} and what they must answer.

    pip install gguf==0.19.0 numpy
    python tests/golden/hybrid_gguf.py

There is no randomness: the weights are those of the golden safetensors beside, the prompts theirs too.

What the public writer does (llama.cpp: conversion/nemotron.py, granite.py, mamba.py; names: gguf-py constants.py and
tensor_mapping.py; its reader: src/models/nemotron-h.cpp, mamba2.cpp), and this script after it:

* ssm_a = -exp(A_log), shape [heads, 1]; ssm_d [heads, 1]; dt_bias -> ssm_dt.bias;
  conv1d.weight [C, 1, K] -> ssm_conv1d.weight [C, K]; mixer.norm.weight [I] -> ssm_norm.weight [groups, I / groups].
* Experts stacked: ffn_up_exps, ffn_down_exps [E, out, in]; gate -> ffn_gate_inp; e_score_correction_bias ->
  exp_probs_b.bias; shared_experts -> ffn_up_shexp, ffn_down_shexp; fc1/fc2_latent_proj -> ffn_latent_down/_up.
* No list of layer kinds: attention.head_count_kv and feed_forward_length are arrays with a 0 for the layers that have
  none; a layer with both 0 is Mamba2. ssm.time_step_rank is the number of heads; head_count a number.
* Vectors, convolutions, A, D and the router are F32. q and k need no permutation: there is no rope.

The writer and its reader cannot express experts beside plain MLPs ("MEM*-E"): with experts anywhere, the reader looks
for them in every layer that has a feed-forward width. Here such a file says what its tensors are, which is enough for a
reader that looks at them.

gguf_nemotron_h mixes tensor types, so its answers are those of the dequantised tensors in the float64 forward pass
below, which first has to reproduce the answers of the unquantised source. The others hold the source's weights exactly
and keep its answers.
"""

import numpy as np
from common import DATA, add_tokenizer, answers, config_of, copied, difference, finish, new_writer, read_safetensors
from common import read_tensors, silu, write_tensors
from gguf import GGMLQuantizationType as Type

GENERATOR = "hybrid_gguf.py"

# Names -------------------------------------------------------------------------------------------------------------

PARTS = {
    "norm.weight": "attn_norm.weight",
    "mixer.in_proj.weight": "ssm_in.weight",
    "mixer.conv1d.weight": "ssm_conv1d.weight",
    "mixer.conv1d.bias": "ssm_conv1d.bias",
    "mixer.dt_bias": "ssm_dt.bias",
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.norm.weight": "ssm_norm.weight",
    "mixer.out_proj.weight": "ssm_out.weight",
    "mixer.q_proj.weight": "attn_q.weight",
    "mixer.k_proj.weight": "attn_k.weight",
    "mixer.v_proj.weight": "attn_v.weight",
    "mixer.o_proj.weight": "attn_output.weight",
    "mixer.up_proj.weight": "ffn_up.weight",
    "mixer.down_proj.weight": "ffn_down.weight",
    "mixer.gate.weight": "ffn_gate_inp.weight",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mixer.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mixer.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "mixer.fc1_latent_proj.weight": "ffn_latent_down.weight",
    "mixer.fc2_latent_proj.weight": "ffn_latent_up.weight",
}
OUTER = {
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def converted(source, groups):
    """GGUF name -> (array, stored type of the source), values and shapes as the writer has them."""
    out, stacks = {}, {}
    for name, (array, kind) in source.items():
        if name in OUTER:
            out[OUTER[name]] = (array, kind)
            continue
        _, _, layer, part = name.split(".", 3)
        if ".experts." in part:
            _, _, expert, side, _ = part.split(".")
            stacks.setdefault((layer, side.removesuffix("_proj")), {})[int(expert)] = (array, kind)
            continue
        new = f"blk.{layer}.{PARTS[part]}"
        if part == "mixer.A_log":
            array = -np.exp(array)
        if part in ("mixer.A_log", "mixer.D"):
            array = array.reshape(-1, 1)
        if part == "mixer.conv1d.weight":
            array = array.reshape(array.shape[0], -1)
        if part == "mixer.norm.weight":
            array = array.reshape(groups, -1)
        out[new] = (array, kind)
    for (layer, side), experts in stacks.items():
        arrays = [experts[i][0] for i in range(len(experts))]
        out[f"blk.{layer}.ffn_{side}_exps.weight"] = (np.stack(arrays), experts[0][1])
    return out


def stays_f32(name, array):
    return array.ndim == 1 or any(p in name for p in ("ssm_conv1d", "ssm_a", "ssm_d", "ssm_norm", "ffn_gate_inp"))


# Chosen so that no two experts and no two tokens come so close that rounding could swap them (asserted below).
MIXED = {
    "token_embd.weight": Type.Q5_0,
    "output.weight": Type.BF16,
    "ssm_in.weight": Type.Q4_1,
    "ssm_out.weight": Type.Q8_0,
    "attn_q.weight": Type.Q5_1,
    "attn_k.weight": Type.Q5_0,
    "attn_v.weight": Type.Q4_0,
    "attn_output.weight": Type.Q8_0,
    "ffn_up.weight": Type.F16,
    "ffn_down.weight": Type.MXFP4,
    "ffn_up_exps.weight": Type.Q4_1,
    "ffn_down_exps.weight": Type.Q8_0,
    "ffn_up_shexp.weight": Type.Q4_0,
    "ffn_down_shexp.weight": Type.Q5_1,
}


def write(family, target, arch, keys, mixed):
    config = config_of(family)
    tensors = converted(read_safetensors(DATA / family / "model.safetensors"), config["n_groups"])
    writer = new_writer(family, target, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_group_count(config["n_groups"])
    keys(writer, config)
    add_tokenizer(writer, config["vocab_size"])
    types = write_tensors(writer, tensors, stays_f32, MIXED if mixed else None)
    return config, types


def nemotron_keys(writer, c):
    pattern = c["hybrid_override_pattern"]
    width = {"E": c["moe_intermediate_size"], "-": c["intermediate_size"]}
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv([c["num_key_value_heads"] if p == "*" else 0 for p in pattern])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_feed_forward_length([width.get(p, 0) for p in pattern])
    writer.add_ssm_inner_size(c["mamba_num_heads"] * c["mamba_head_dim"])
    writer.add_ssm_state_size(c["ssm_state_size"])
    writer.add_ssm_time_step_rank(c["mamba_num_heads"])
    writer.add_expert_count(c["n_routed_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(c["moe_shared_expert_intermediate_size"])
    writer.add_expert_shared_count(c["n_shared_experts"])
    writer.add_expert_weights_norm(c["norm_topk_prob"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    writer.add_expert_group_count(c["n_group"])
    writer.add_expert_group_used_count(c["topk_group"])
    if c["moe_latent_size"]:
        writer.add_moe_latent_size(c["moe_latent_size"])


def mamba2_keys(writer, c):
    writer.add_context_length(2**20)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_inner_size(c["num_heads"] * c["head_dim"])
    writer.add_ssm_state_size(c["state_size"])
    writer.add_ssm_time_step_rank(c["num_heads"])


# The forward pass of nemotron_h, from tensors as GGUF has them, one token after the other, in float64 ---------------


class Model:
    def __init__(self, path, config):
        self.c = config
        self.t = read_tensors(path)
        self.smallest_gap = np.inf

    def rms(self, x, weight):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.c["layer_norm_epsilon"]) * weight

    def mamba(self, l, x):
        c, t = self.c, lambda n: self.t[f"blk.{l}.{n}"]
        heads, dim, size, groups = c["mamba_num_heads"], c["mamba_head_dim"], c["ssm_state_size"], c["n_groups"]
        inner = heads * dim
        channels = inner + 2 * groups * size
        z, xbc, dt = np.split(x @ t("ssm_in.weight").T, [inner, inner + channels], axis=1)
        taps = t("ssm_conv1d.weight")
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, channels)), xbc])
        conv = sum(padded[k : k + len(x)] * taps[:, k] for k in range(taps.shape[1])) + t("ssm_conv1d.bias")
        xs, b, cc = np.split(silu(conv), [inner, inner + groups * size], axis=1)
        dt = np.logaddexp(0, dt + t("ssm_dt.bias"))
        decay = np.exp(dt * t("ssm_a")[:, 0])
        state, y = np.zeros((heads, dim, size)), np.zeros((len(x), inner))
        for i in range(len(x)):
            xi = xs[i].reshape(heads, dim)
            bi, ci = (np.repeat(v[i].reshape(groups, size), heads // groups, 0) for v in (b, cc))
            state = decay[i][:, None, None] * state + (dt[i][:, None] * xi)[:, :, None] * bi[:, None, :]
            y[i] = (np.einsum("hps,hs->hp", state, ci) + t("ssm_d") * xi).ravel()
        gated = (y * silu(z)).reshape(len(x), groups, -1)
        return self.rms(gated, t("ssm_norm.weight")).reshape(len(x), inner) @ t("ssm_out.weight").T

    def attention(self, l, x):
        c, t = self.c, lambda n: self.t[f"blk.{l}.{n}"]
        heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        split = lambda n, h: (x @ t(n).T).reshape(len(x), h, dim)
        q, k, v = split("attn_q.weight", heads), split("attn_k.weight", kv), split("attn_v.weight", kv)
        k, v = np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores = np.where(np.tril(np.ones((len(x), len(x)), bool)), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", scores, v).reshape(len(x), -1) @ t("attn_output.weight").T

    def mlp(self, l, x, up, down):
        return np.maximum(x @ self.t[f"blk.{l}.{up}"].T, 0) ** 2 @ self.t[f"blk.{l}.{down}"].T

    def experts(self, l, x):
        c, t = self.c, lambda n: self.t[f"blk.{l}.{n}"]
        top, groups = c["num_experts_per_tok"], c["n_group"]
        scores = 1 / (1 + np.exp(-(x @ t("ffn_gate_inp.weight").T)))
        seen = x if "moe_latent_size" not in c or not c["moe_latent_size"] else x @ t("ffn_latent_down.weight").T
        out = np.zeros_like(seen)
        for i in range(len(x)):
            biased = scores[i] + t("exp_probs_b.bias")
            if groups > 1:
                by_group = np.sort(biased.reshape(groups, -1), 1)[:, -2:].sum(1)
                for lost in np.argsort(-by_group, kind="stable")[c["topk_group"] :]:
                    biased.reshape(groups, -1)[lost] = -np.inf
            order = np.argsort(-biased, kind="stable")
            self.smallest_gap = min(self.smallest_gap, biased[order[top - 1]] - biased[order[top]])
            chosen = order[:top]
            weights = scores[i][chosen]
            if c["norm_topk_prob"]:
                weights = weights / (weights.sum() + 1e-20)
            for e, weight in zip(chosen, weights * c["routed_scaling_factor"]):
                hidden = np.maximum(t("ffn_up_exps.weight")[e] @ seen[i], 0) ** 2
                out[i] += weight * (t("ffn_down_exps.weight")[e] @ hidden)
        if seen is not x:
            out = out @ t("ffn_latent_up.weight").T
        return out + self.mlp(l, x, "ffn_up_shexp.weight", "ffn_down_shexp.weight")

    def __call__(self, ids):
        x = self.t["token_embd.weight"][ids]
        for l, kind in enumerate(self.c["hybrid_override_pattern"]):
            h = self.rms(x, self.t[f"blk.{l}.attn_norm.weight"])
            if kind == "M":
                x = x + self.mamba(l, h)
            elif kind == "*":
                x = x + self.attention(l, h)
            elif kind == "-":
                x = x + self.mlp(l, h, "ffn_up.weight", "ffn_down.weight")
            else:
                x = x + self.experts(l, h)
        return self.rms(x, self.t["output_norm.weight"]) @ self.t["output.weight"].T


def main():
    # The same weights: the source's answers, which for nemotron_h must also come from the forward pass above.
    for family, target, arch, keys in [
        ("nemotron_h_latent", "gguf_nemotron_h_latent", "nemotron_h_moe", nemotron_keys),
        ("mamba2", "gguf_mamba2", "mamba2", mamba2_keys),
    ]:
        config, types = write(family, target, arch, keys, mixed=False)
        what = "the source's weights exactly, and its answers"
        if keys is nemotron_keys:
            source = read_safetensors(DATA / family / "expected.safetensors")
            ours, _ = answers(Model(DATA / target / "model.gguf", config), source)
            off = difference(ours, source)
            assert off < 1e-4, off
            print(family, "forward pass against the reference:", off)
        finish(GENERATOR, target, family, copied(family), types, what, {})

    source = read_safetensors(DATA / "nemotron_h" / "expected.safetensors")
    config, _ = write("nemotron_h", "gguf_nemotron_h", "nemotron_h_moe", nemotron_keys, mixed=False)
    plain, _ = answers(Model(DATA / "gguf_nemotron_h" / "model.gguf", config), source)
    off = difference(plain, source)
    assert off < 1e-4, off
    print("nemotron_h forward pass against the reference:", off)
    config, types = write("nemotron_h", "gguf_nemotron_h", "nemotron_h_moe", nemotron_keys, mixed=True)
    model = Model(DATA / "gguf_nemotron_h" / "model.gguf", config)
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
    finish(GENERATOR, "gguf_nemotron_h", "nemotron_h", ours, types, what, noise)


if __name__ == "__main__":
    main()
