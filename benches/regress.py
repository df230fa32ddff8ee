#!/usr/bin/env python3
"""Have kernels become slower, by their part of what the adapter can do?

    benches/regress.py --save FILE                  # measures every kernel, and keeps it as a baseline
    benches/regress.py --against FILE               # measures again and compares
    benches/regress.py --compare BASELINE NOW       # two saved files; measures nothing
                       [--runs N] [--bench NAME]… [--filter F]

A run is `cargo bench` of the kernels' benches with PLIMSOLL_FIGURES (benches/figures); each measures the ceilings of the
adapter first. Of every name the ratio that binds counts: the larger of its parts of the read bandwidth and of the
multiply-add rate. A name is slower if the median of its ratio fell by more than 10 % and the ranges of the runs do not
overlap. For a machine that does nothing else meanwhile.

Exit status: 0 nothing became slower; 1 something did, or a name is gone; 2 nothing can be said: another adapter, files
that are no such files, benches that failed.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCHES = sorted(path.stem for path in (ROOT / "benches").glob("kernels_*.rs"))
CEILINGS = ("read", "copy", "flops")
# What a median has to differ by to be told.
MARGIN = 0.10


class Unanswerable(Exception):
    """No comparison, and why."""


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def summarise(runs):
    """Of the lines of each run: the adapter, its ceilings, and every name with the ratio that binds."""
    adapters, ceilings, figures = set(), {name: [] for name in CEILINGS}, {}
    for lines in runs:
        for line in lines:
            if "adapter" in line:
                adapters.add(line["adapter"])
                for name in CEILINGS:
                    ceilings[name].append(line["ceilings"][name])
            else:
                figures.setdefault(f"{line['bench']}/{line['name']}", []).append(line)
    if len(adapters) != 1:
        raise Unanswerable(f"one adapter was to be measured, not {sorted(adapters)}")
    if not figures:
        raise Unanswerable("nothing was measured: no name contains the filter")
    document = {"adapter": adapters.pop(), "ceilings": {n: spread(v) for n, v in ceilings.items()}, "figures": {}}
    for name, lines in figures.items():
        by_read = sum(line["of_read"] >= line["of_flops"] for line in lines) * 2 >= len(lines)
        document["figures"][name] = {
            "kernel": lines[-1]["kernel"], "bound": "reading" if by_read else "multiply-adds",
            "seconds": spread([line["seconds"] for line in lines]),
            "ratio": spread([max(line["of_read"], line["of_flops"]) for line in lines])}
    return document


def measure(benches, part, runs):
    cargo = [os.environ.get("CARGO", "cargo"), "bench", "--quiet", "--workspace", "--profile", "dev"]
    cargo += [word for bench in benches for word in ("--bench", bench)]
    each = []
    for turn in range(runs):
        print(f"run {turn + 1} of {runs}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "figures"
            env = {"XDG_RUNTIME_DIR": "/tmp", **os.environ, "PLIMSOLL_FIGURES": str(file), "PLIMSOLL_FIGURES_ONLY": "1"}
            # Standard output is the comparison's.
            run = subprocess.run([*cargo, "--", *([part] if part else [])], cwd=ROOT, env=env, stdout=sys.stderr)
            if run.returncode != 0:
                raise Unanswerable(f"the benches failed (status {run.returncode})")
            each.append([json.loads(line) for line in file.read_text().splitlines()])
    return {"date": datetime.date.today().isoformat(), "commit": commit(), "runs": runs, "benches": benches,
            "filter": part, **summarise(each)}


def commit():
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    try:
        return git("rev-parse", "--short", "HEAD") + (" and changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def load(path):
    try:
        document = json.loads(path.read_text())
        for name in ("adapter", "ceilings", "commit", "date", "benches", "filter", "figures"):
            document[name]
        return document
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unanswerable(f"{path}: not a file of --save: {error!r}") from error


def said(spread, scale=100, form=".1f"):
    median, least, most = (format(spread[key] * scale, form) for key in ("median", "least", "most"))
    return f"{median} ({least} – {most})"


def compare(old, new):
    """The lines to print, and the exit status."""
    if old["adapter"] != new["adapter"]:
        raise Unanswerable(f"{old['adapter']} is not {new['adapter']}: ratios of different adapters do not compare")
    lines = [old["adapter"], ""]
    rows = [["", "baseline", "now"], *(
        [what, *(str(document[key]) for document in (old, new))]
        for what, key in (("commit", "commit"), ("date", "date"), ("runs", "runs")))]
    rows += [[f"{name}, G a second", *(said(document["ceilings"][name], 1e-9) for document in (old, new))]
             for name in CEILINGS]
    lines += [*table(rows), ""]

    slower, told = [], []
    for name, now in new["figures"].items():
        if name not in old["figures"]:
            continue
        before, after = old["figures"][name]["ratio"], now["ratio"]
        change = after["median"] / before["median"] - 1 if before["median"] else 0.0
        apart = after["most"] < before["least"] or after["least"] > before["most"]
        if abs(change) <= MARGIN:
            continue
        verdict = ("slower" if change < 0 else "faster") + ("" if apart else "? ranges overlap")
        if verdict == "slower":
            slower.append(name)
        told.append((change, [name, said(before), said(after), f"{100 * change:+.0f} %", now["bound"], verdict]))
    if told:
        head = ["name", "% of its ceiling before", "now", "change", "bound by", ""]
        lines += [*table([head, *(row for _, row in sorted(told))]), ""]

    # What the newer file was not asked to measure is not gone.
    gone = [name for name in old["figures"] if name not in new["figures"]
            and name.split("/")[0] in new["benches"] and (new["filter"] or "") in name]
    fresh = [name for name in new["figures"] if name not in old["figures"]]
    lines += [f"gone: {name}" for name in gone]
    lines += [f"new: {name}: {said(new['figures'][name]['ratio'])} %" for name in fresh]
    both = len(new["figures"]) - len(fresh)
    lines.append(f"{both} compared, {len(slower)} slower, {len(gone)} gone, {len(fresh)} new")
    return lines, 1 if slower or gone else 0


def table(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=pathlib.Path, metavar="FILE", help="keep what was measured")
    parser.add_argument("--against", type=pathlib.Path, metavar="FILE", help="compare it with what was kept; its benches "
                        "and filter hold where none are given")
    parser.add_argument("--compare", type=pathlib.Path, nargs=2, metavar=("BASELINE", "NOW"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bench", action="append", metavar="NAME", help=f"of {', '.join(BENCHES)} (all), or wide")
    parser.add_argument("--filter", metavar="F", help="a part of BENCH/NAME")
    args = parser.parse_args(arguments)
    if bool(args.compare) == bool(args.save or args.against):
        parser.error("--save, --against or both; or --compare")
    if args.runs < 2:
        parser.error("--runs is at least 2: one run has no range")
    try:
        if args.compare:
            old, new = map(load, args.compare)
        else:
            old = load(args.against) if args.against else {}
            benches = args.bench or old.get("benches") or BENCHES
            new = measure(benches, args.filter or old.get("filter"), args.runs)
        if args.save:
            args.save.write_text(json.dumps(new, indent=1) + "\n")
        if not old:
            print(f"{args.save}: {len(new['figures'])} figures of {new['adapter']}")
            return 0
        lines, status = compare(old, new)
    except (Unanswerable, OSError) as error:
        print(f"regress.py: {error}", file=sys.stderr)
        return 2
    except (KeyError, TypeError) as error:
        print(f"regress.py: not a file of --save: {error!r}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
