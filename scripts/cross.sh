#!/usr/bin/env bash
# Type-checks the library for targets this machine cannot run, with a toolchain that builds their standard library
# from source. Debian packages one (see scripts/setup.sh cross).
set -euo pipefail
cd "$(dirname "$0")/.."
for target in aarch64-apple-darwin x86_64-pc-windows-msvc; do
    echo "==> checking for $target"
    RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/cross \
        /usr/bin/cargo check --quiet --lib -Zbuild-std=std,panic_abort --target "$target"
done
