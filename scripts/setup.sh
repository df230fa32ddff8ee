#!/usr/bin/env bash
# Sets up what a machine lacks, and says what it does. Safe to run again.
#
#   scripts/setup.sh vulkan    a Vulkan driver: the machine's own, else Mesa's software driver
#   scripts/setup.sh spirv     the SPIR-V validator
#   scripts/setup.sh cross     a toolchain that can type-check for macOS and Windows
#   scripts/setup.sh linker    what Rust links with
#   scripts/setup.sh browser   Chromium, which the tests open the estimate's page with
#   scripts/setup.sh python    Python with pip, to fetch the real models' packages
set -euo pipefail
# Debian keeps ldconfig out of a user's path.
PATH=$PATH:/usr/sbin:/sbin

say() { printf '==> %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
        say "need root to run: $*"; exit 1
    fi
}

updated=
install() {
    if ! command -v apt-get >/dev/null; then
        say "this is no Debian: please install by hand what provides: $*"
        exit 1
    fi
    say "installing $*"
    if [ -z "$updated" ]; then as_root apt-get update -qq; updated=1; fi
    # Through env: sudo drops the variables it is started with.
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

have_loader() { [ "$(uname)" != Linux ] || ldconfig -p 2>/dev/null | grep 'libvulkan\.so\.1' >/dev/null; }
have_driver() { [ "$(uname)" != Linux ] || { ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json 2>/dev/null || true; } | grep . >/dev/null; }

# Debian's plain rustc is older than the one for its browsers.
have_cross() {
    local have
    [ -d /usr/lib/rustlib/src ] && [ -x /usr/bin/cargo ] && have=$(/usr/bin/rustc --version 2>/dev/null) || return 1
    printf '%s\n' "1.95" "$(cut -d' ' -f2 <<<"$have")" | sort -C -V
}

# Under the names the tests look for; Ubuntu's chromium is a stub that starts only with snaps.
have_browser() {
    local name
    for name in ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome; do
        if "$name" --version >/dev/null 2>&1; then return 0; fi
    done
    return 1
}

for what in "$@"; do
    case $what in
        vulkan)
            if have_loader && have_driver; then say "Vulkan: there"; else install libvulkan1 mesa-vulkan-drivers; fi ;;
        linker)
            if command -v cc >/dev/null; then say "linker: there"; else install gcc libc6-dev; fi ;;
        spirv)
            if command -v spirv-val >/dev/null; then say "spirv-val: there"; else install spirv-tools; fi ;;
        cross)
            if have_cross; then say "cross toolchain: there"; else
                install rustc-web cargo-web rust-web-src; fi ;;
        browser)
            if have_browser; then say "browser: there"; else install chromium fonts-dejavu-core; fi ;;
        python)
            if python3 -m pip --version >/dev/null 2>&1; then say "pip: there"; else install python3 python3-pip; fi ;;
        *) say "unknown: $what"; exit 2 ;;
    esac
done
