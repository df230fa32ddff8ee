#!/usr/bin/env python3
"""Plimsoll beside llama.cpp on this machine: the same file, the same lengths, in turns.

Usage: benches/compare.py [--rounds 5] [--prompt 512] [--new 64] [--depth 1024] [--threads N]
                          [--llama-bench [NAME=]PATH]... [--no-cpu] [--json FILE] [--markdown FILE] [MODEL.gguf]...

Without models: those that `make models` fetched. The processor side is llama.cpp's own, from the package
`llama-cpp-python`, built on first use into a virtual environment under `.cache/compare` (it needs a C++ compiler and
takes minutes). Any `llama-bench` may join, for instance one with the Vulkan backend; `--llama-bench vulkan=PATH`
names it in the table. Every engine takes a turn in every round, in changing order, each in a process of its own that
warms up before it measures. The table has medians, least and most, and the ratio of the medians to llama.cpp's
processor side; the figures of one table are of one run and of nothing else.

What is measured: prefill of PROMPT tokens from nothing; decoding NEW tokens at depth 1; the same at depth DEPTH.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".cache" / "compare"
PACKAGE = "llama-cpp-python==0.3.36"


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def run(command, **options):
    """Runs a command and answers its output; its errors end the comparison with what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def worker(path, prompt, new, depth, threads):
    """llama.cpp's processor side: one measurement, in the virtual environment's Python."""
    import llama_cpp

    context = max(prompt, depth) + new + 2
    model = llama_cpp.Llama(
        path, n_ctx=context, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, n_gpu_layers=0,
        verbose=False)
    vocab = model.n_vocab()
    ids = [(i * 7919 + 11) % (vocab - 8) + 4 for i in range(max(prompt, depth, 1))]

    def prefill(count):
        model.reset()
        start = time.perf_counter()
        model.eval(ids[:count])
        return count / (time.perf_counter() - start)

    def decode(at):
        prefill(at)
        start = time.perf_counter()
        for i in range(new):
            model.eval([ids[i % len(ids)]])
        return new / (time.perf_counter() - start)

    prefill(min(prompt, 64))
    decode(1)
    print(json.dumps({"prefill": prefill(prompt), "decode": decode(1), "deep": decode(depth)}))


def plimsoll(binary, model, prompt, new, depth):
    def bench(p, n):
        out = run([binary, "bench", model, "-p", p, "-n", n, "-r", 1, "--json"])
        document = json.loads(out)
        rate = lambda key: document[key]["median"]
        return rate("prefill_tokens_per_second"), rate("decode_tokens_per_second"), document

    prefill, _, _ = bench(prompt, 2)
    _, decode, _ = bench(1, new)
    _, deep, document = bench(depth, new)
    return {"prefill": prefill, "decode": decode, "deep": deep, "adapter": document["adapter"]}


def llama_bench(binary, model, prompt, new, depth, threads):
    out = run([binary, "-m", model, "-p", prompt, "-n", new, "-d", f"0,{depth}", "-r", 1, "-t", threads, "-o", "json"])
    rates = {}
    for line in json.loads(out):
        deep = line.get("n_depth", 0) > 0
        if line["n_gen"] > 0:
            rates["deep" if deep else "decode"] = line["avg_ts"]
        elif not deep:
            rates["prefill"] = line["avg_ts"]
    return rates


def environment():
    python = VENV / "bin" / "python"
    if not python.exists():
        say(f"building {PACKAGE} into {VENV}: minutes")
        run([sys.executable, "-m", "venv", VENV])
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE],
            env={**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON", **without_amx()})
    return python


def without_amx():
    """Flags that leave llama.cpp's AMX kernels out where the compiler would take them: in this version they end with a
    segmentation fault on Q4_1 (seen on a Xeon with AMX); what is left is its AVX-512 side."""
    seen = subprocess.run(["cc", "-march=native", "-dM", "-E", "-"], input="", capture_output=True, text=True)
    if "__AMX_INT8__" not in seen.stdout:
        return {}
    off = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    return {name: f"{os.environ.get(name, '')} {off}".strip() for name in ("CFLAGS", "CXXFLAGS")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--depth", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--llama-bench", action="append", default=[])
    parser.add_argument("--no-cpu", action="store_true", help="leave llama.cpp's processor side out")
    parser.add_argument("--python", type=pathlib.Path, help="a Python that has llama-cpp-python already")
    parser.add_argument("--binary", type=pathlib.Path, help="a plimsoll that is built already")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, args.prompt, args.new, args.depth, args.threads)
    if min(args.rounds, args.prompt, args.new, args.depth, args.threads) < 1:
        parser.error("rounds, lengths and threads are at least 1")

    models = args.models or sorted((ROOT / ".cache" / "models").glob("*.gguf"))
    if not models:
        sys.exit("no model: run `make models`, or name one")
    for model in models:
        if not model.is_file():
            sys.exit(f"{model}: no such file")
    if args.binary is None:
        say("building plimsoll")
        subprocess.run(["cargo", "build", "--release", "--quiet", "--bin", "plimsoll"], cwd=ROOT, check=True)
    binary = args.binary or ROOT / "target" / "release" / "plimsoll"

    lengths = (args.prompt, args.new, args.depth)
    engines = {"plimsoll": lambda model: plimsoll(binary, model, *lengths)}
    if not args.no_cpu:
        python = args.python or environment()
        options = ["--prompt", args.prompt, "--new", args.new, "--depth", args.depth, "--threads", args.threads]
        engines["llama.cpp, processor"] = lambda model: json.loads(
            run([python, __file__, "--worker", model, *options]).splitlines()[-1])
    for given in args.llama_bench:
        name, _, path = given.rpartition("=")
        engines[f"llama-bench, {name or pathlib.Path(path).parent.name}"] = (
            lambda model, path=path: llama_bench(path, model, *lengths, args.threads))

    results, adapter = [], None
    for model in models:
        measured = {name: [] for name in engines}
        for turn in range(args.rounds):
            order = list(engines)
            order = order[turn % len(order):] + order[:turn % len(order)]
            for name in order:
                say(f"{model.name}, round {turn + 1} of {args.rounds}: {name}")
                measured[name].append(engines[name](model))
                adapter = measured[name][-1].pop("adapter", None) or adapter
        results.append((model, measured))

    names = {"prefill": f"prefill {args.prompt}", "decode": f"decode {args.new} at 1",
             "deep": f"decode {args.new} at {args.depth}"}
    base = "llama.cpp, processor"
    lines = [f"{processor()}, {args.threads} threads; {args.rounds} rounds in turns; adapter of plimsoll: "
             f"{adapter['name']}, {adapter['driver']}", "",
             "| model | tokens a second | engine | median | least | most | to llama.cpp's processor side |",
             "|---|---|---|---|---|---|---|"]
    document = {"machine": processor(), "threads": args.threads, "rounds": args.rounds, "adapter": adapter,
                "prompt": args.prompt, "new": args.new, "depth": args.depth, "models": []}
    for model, measured in results:
        document["models"].append({"file": model.name, "engines": measured})
        for key, what in names.items():
            medians = {name: statistics.median(r[key] for r in rounds) for name, rounds in measured.items()}
            for name, rounds in measured.items():
                each = [r[key] for r in rounds]
                ratio = f"{medians[name] / medians[base]:.2f}" if base in medians else ""
                lines.append(f"| {model.name} | {what} | {name} | {medians[name]:.2f} | {min(each):.2f} | "
                             f"{max(each):.2f} | {ratio} |")
    table = "\n".join(lines) + "\n"
    print(table, end="")
    if args.markdown:
        args.markdown.write_text(table)
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")


def processor():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
