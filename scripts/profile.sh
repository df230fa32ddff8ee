#!/usr/bin/env bash
# Writes benches/results/profile_NAME.md for a model: the machine, the command, and the profile at two depths.
#
#   scripts/profile.sh NAME MODEL [DEPTH…]        depths are prompts, 4 and 1024 by default
#
# For a machine that does nothing else meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?NAME}
model=${2:?MODEL}
shift 2
depths=("$@")
[ $# -gt 0 ] || depths=(4 1024)
cargo=${CARGO:-cargo}
"$cargo" build --release --bin plimsoll
plimsoll=${CARGO_TARGET_DIR:-target}/release/plimsoll
file=benches/results/profile_$name.md
draft=$(mktemp)
trap 'rm -f "$draft"' EXIT
{
    echo "# Where the time goes: $(basename "$model")"
    echo
    echo "$(date -u +%Y-%m-%d), $(uname -sm), $(nproc) CPUs, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -1), commit $(git rev-parse --short HEAD)."
    echo
    echo '```'
    "$plimsoll" bench --ceilings
    echo '```'
    for depth in "${depths[@]}"; do
        options=(-p "$depth" -n 16 -r 3)
        echo
        echo "# Prompt of $depth"
        echo
        echo "\`plimsoll bench $(basename "$model") --profile ${options[*]} --markdown\`"
        echo
        "$plimsoll" bench "$model" --profile "${options[@]}" --markdown
    done
} > "$draft"
cat "$draft" > "$file"
echo "$file"
