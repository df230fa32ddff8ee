#!/usr/bin/env bash
# Looks at the machine's adapter, in one command and a few minutes: is every kernel right on it, what can it do, and how
# much of that do the kernels and two real models reach? For Linux with a Vulkan driver.
#
#   benches/gpu_check.sh [OUT.json]      default: target/gpu_check.json; a text of the parts stands beside it
#
# PLIMSOLL_ADAPTER names another adapter than the first real GPU (`plimsoll devices` lists them). On a software driver
# the wide layers are smaller (--quick). Building comes first and is not part of the minutes. Every part runs even if one
# before it fails; the last line and the exit status say whether all passed.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-target/gpu_check.json}")
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/tmp}
cargo=${CARGO:-cargo}
mkdir -p "$(dirname "$out")"
log=${out%.json}.log
: > "$log"
say() { printf '==> %s\n' "$*" | tee -a "$log" >&2; }

kernels=()
for file in tests/kernels_*.rs; do kernels+=(--test "$(basename "$file" .rs)"); done
goldens=(--test goldens --test goldens_hybrids --test goldens_experts)

say "building"
# One profile for all, so that wgpu is built once; it is optimised (see Cargo.toml).
$cargo build --quiet --bin plimsoll || exit 1
$cargo test --quiet --workspace --no-run "${kernels[@]}" "${goldens[@]}" 2>>"$log" || exit 1
$cargo bench --quiet --profile dev --no-run --bench wide 2>>"$log" || exit 1
make --silent models >>"$log" 2>&1 || { say "the real models could not be fetched; see $log"; exit 1; }
plimsoll=target/debug/plimsoll
begin=$SECONDS failed=()

# part NAME COMMAND...: standard output to NAME.json, the rest to the log.
part() {
    local name=$1 start=$SECONDS status
    shift
    "$@" >"$parts/$name.json" 2>>"$log"
    status=$?
    [ $status = 0 ] || failed+=("$name")
    printf '{"seconds": %d, "status": %d}\n' $((SECONDS - start)) $status >"$parts/$name.meta"
    say "$name: $((SECONDS - start)) s, status $status"
}

tests() { $cargo test --quiet --workspace "$@" >&2 && echo '{}'; }

part devices "$plimsoll" devices --json
part ceilings "$plimsoll" bench --ceilings --json
part kernels tests "${kernels[@]}"
part goldens tests "${goldens[@]}"
software=$(python3 - "$parts/devices.json" <<'PY'
import json, os, sys
try:
    devices = json.load(open(sys.argv[1]))
    devices = devices.get("adapters", devices) if isinstance(devices, dict) else devices
    print("--quick" if all(d.get("kind") == "cpu" for d in devices) or os.environ.get("PLIMSOLL_ADAPTER") == "cpu" else "")
except (OSError, ValueError, AttributeError):
    print("--quick")
PY
)
part wide $cargo bench --quiet --profile dev --bench wide -- $software
for model in SmolLM2-135M-Instruct.Q4_1 gemma-3-270m-q4_k_m; do
    part "$model" "$plimsoll" bench ".cache/models/$model.gguf" -p 512 -n 64 -r 3 --json
    part "$model-deep" "$plimsoll" bench ".cache/models/$model.gguf" -p 1024 -n 32 -r 3 --json
done

python3 - "$parts" "$out" "$((SECONDS - begin))" <<'PY'
import json, pathlib, sys
parts, out, seconds = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
document = {"seconds": seconds, "parts": {}}
for meta in sorted(parts.glob("*.meta")):
    entry = json.loads(meta.read_text())
    try:
        entry["result"] = json.loads(meta.with_suffix(".json").read_text() if meta.suffix == ".meta" else "")
    except ValueError:
        entry["result"] = None
    document["parts"][meta.stem] = entry
out.write_text(json.dumps(document, indent=1) + "\n")
PY
say "$((SECONDS - begin)) s; results in $out"
if [ ${#failed[@]} -gt 0 ]; then say "failed: ${failed[*]}"; exit 1; fi
say "all parts passed"
