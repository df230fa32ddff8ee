"""Writes what the multimodal checkpoints of tests/data/golden/*_vision* answer to text alone.

    pip install torch==2.15.0 transformers==5.24.0 safetensors numpy
    python tests/golden/vision_text.py

The weights beside are tiny and random, in the layout that multimodal models are published in, towers included. Each is
run by transformers in float32 on prompts without images: `prompt.N.*` and `decode.*` as in the other directories. The
prompt of 10 tokens is not computed here but taken over from the file that is there: the rows of a recorded multimodal
prompt before its first image, which see nothing of it.

Prompts are drawn from seeds until the greedy continuation of one has no step whose two best are within 2e-3.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

DATA = Path(__file__).resolve().parent.parent / "data" / "golden"
DIRECTORIES = ["qwen3_5_vision", "qwen3_5_moe_vision", "gemma4_vision", "gemma4_vision_bidir", "gemma3_vision"]
LENGTHS = [1, 7, 33, 100]
# Ids from 250 on stand for images and their ends.
PLAIN = 250
STEPS = 16
GAP = 2e-3


def logits_of(model, ids, cache=None):
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
    return out.logits[0].float().numpy(), out.past_key_values


def decode(model, prompt):
    """Greedy ids, the row each was chosen from, and the smallest gap between the two best."""
    rows, ids, gap = [], [], np.inf
    logits, cache = logits_of(model, prompt)
    for _ in range(STEPS):
        row = logits[-1]
        best = np.sort(row)[-2:]
        gap = min(gap, best[1] - best[0])
        ids.append(int(row.argmax()))
        rows.append(row)
        logits, cache = logits_of(model, ids[-1:], cache)
    return ids, np.stack(rows), gap


def main():
    for name in DIRECTORIES:
        directory = DATA / name
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(directory)
        model = AutoModelForImageTextToText.from_pretrained(directory, config=config, dtype=torch.float32).eval()
        out = {}
        for seed in range(100):
            rng = np.random.default_rng(seed)
            prompt = rng.integers(0, PLAIN, 33).tolist()
            ids, rows, gap = decode(model, prompt)
            if gap >= GAP and max(ids) < PLAIN:
                break
        else:
            raise SystemExit(f"{name}: no seed does")
        print(name, "seed", seed, "gap", gap)
        out["decode.prompt_ids"] = np.array(prompt, dtype=np.int32)
        out["decode.token_ids"] = np.array(ids, dtype=np.int32)
        out["decode.logits"] = rows.astype(np.float32)
        for length in LENGTHS:
            ids = prompt if length == 33 else rng.integers(0, PLAIN, length).tolist()
            rows, _ = logits_of(model, ids)
            keep = length if length == 33 else min(4, length)
            out[f"prompt.{length}.input_ids"] = np.array(ids, dtype=np.int32)
            out[f"prompt.{length}.logits"] = np.ascontiguousarray(rows[-keep:])
        there = load_file(directory / "expected.safetensors")
        if "case.0.input_ids" in there:
            # The last of the ten opens the image, and is text.
            types = there.get("case.0.mm_token_type_ids", there.get("case.0.token_type_ids"))
            first = int(np.argmax(types))
            assert first == 10
            there = {
                "prompt.10.input_ids": there["case.0.input_ids"][:first],
                "prompt.10.logits": there["case.0.logits"][:first],
            }
        out |= {key: np.ascontiguousarray(there[f"prompt.10.{key.split('.')[-1]}"]) for key in
                ("prompt.10.input_ids", "prompt.10.logits")}
        rows, _ = logits_of(model, out["prompt.10.input_ids"].tolist())
        print("  off from the recorded rows by", np.abs(rows - out["prompt.10.logits"]).max())
        save_file(out, directory / "expected.safetensors")


main()
