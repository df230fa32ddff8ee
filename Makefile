# The two commands of the README are `make demo` and `make test`. Both set up what they need, say what they do, and
# may be run again.

CARGO ?= cargo

# Mesa asks for it, and says so on stderr where it is missing.
export XDG_RUNTIME_DIR ?= /tmp
SMOLLM2 = .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf

# As it was given: in a recipe its quotes would end the shell's, and what follows would be run.
demo demo-smollm2: export ASKED = $(value PROMPT)

.PHONY: demo demo-smollm2 test lint units fuzz cross bench widths models setup-demo setup-run setup-test

## Asks the bundled model PROMPT: shows the admitted plan, then the answer. Fetches no model.
demo: PROMPT ?= How do I reef a sail?
demo: setup-demo
	$(CARGO) build --bin plimsoll
	$(CARGO) run --quiet --bin plimsoll -- run -v --chat --context 1024 -n 96 --prompt "$$ASKED"

## Runs SmolLM2-135M-Instruct: shows the admitted plan, then a continuation of PROMPT.
demo-smollm2: PROMPT ?= Once upon a time, in a small village by the sea,
demo-smollm2: setup-run
	scripts/models.sh smollm2
	$(CARGO) build --bin plimsoll
	$(CARGO) run --quiet --bin plimsoll -- run $(SMOLLM2) -v --context 1024 --chunk 128 -n 40 --prompt "$$ASKED"

## Everything CI holds the project to.
test: setup-test models lint units fuzz cross
	@echo "==> all checks passed"

## Formatting, lints and documentation.
lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets --features real-models -- -D warnings
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --workspace --no-deps

## Unit, integration and documentation tests, the real models among them, and the test of what a regression is.
units:
	python3 -B benches/regress_test.py
	PLIMSOLL_REQUIRE_SPIRV_VAL=1 PLIMSOLL_REQUIRE_CHROMIUM=1 $(CARGO) test --workspace --features real-models

## A fixed number of mutated inputs through every reader of strangers' bytes.
fuzz:
	$(CARGO) run --quiet --manifest-path fuzz/Cargo.toml --target-dir target --bin replay -- --runs 2000

## Type-checks the library for macOS (Metal) and Windows (DX12).
cross:
	scripts/cross.sh

## Benchmarks of kernels, planning and whole steps (criterion).
bench: setup-run models
	$(CARGO) bench --profile dev

## Published models at their real widths, one layer of each kind, against a forward pass in f64. Wants 3 GiB of memory.
widths: setup-demo
	$(CARGO) test --test real_widths -- --include-ignored --nocapture

models:
	scripts/setup.sh python
	scripts/models.sh smollm2 gemma3

setup-demo:
	scripts/setup.sh linker vulkan

setup-run:
	scripts/setup.sh linker vulkan python

setup-test:
	scripts/setup.sh linker vulkan spirv cross browser python
