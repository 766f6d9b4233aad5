#!/usr/bin/env bash
# Builds for AArch64 and runs tests there in an emulator: the kernels' on three CPUs (without products of bytes, with those
# of FEAT_DotProd, with those of FEAT_I8MM too); then the rest of the crate on the last CPU; then the program, which prints
# its version.
#
# Needs Rust with the target (rustup target add aarch64-unknown-linux-gnu), a cross compiler for C and C++, and qemu of
# version 7 or newer. On Debian and Ubuntu: apt install g++-aarch64-linux-gnu qemu-user
#
#   scripts/aarch64/check.sh                # everything
#   scripts/aarch64/check.sh kernels        # some of: kernels models program
#
# Another toolchain is named by CARGO, RUSTC, CROSS (the prefix of its compilers), QEMU and SYSROOT (the folder with its
# lib/ld-linux-aarch64.so.1).
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo=${CARGO:-cargo}
cross=${CROSS:-aarch64-linux-gnu-}
qemu=${QEMU:-qemu-aarch64}
sysroot=${SYSROOT:-/usr/aarch64-linux-gnu}
target=aarch64-unknown-linux-gnu

for tool in "${cross}gcc" "${cross}g++" "$qemu"; do
    if ! command -v "$tool" >/dev/null; then
        echo "$tool is missing: see the head of $0" >&2
        exit 1
    fi
done

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=${cross}gcc
export CC_aarch64_unknown_linux_gnu=${cross}gcc
export CXX_aarch64_unknown_linux_gnu=${cross}g++
export AR_aarch64_unknown_linux_gnu=${cross}ar

emulated() {
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -L $sysroot -cpu $1"
    shift
    "$cargo" "$@"
}

kernels() {
    local log=target/aarch64-kernels.log
    mkdir -p target
    for cpu in cortex-a72 neoverse-n1 max; do
        echo "==> kernels on $cpu"
        emulated "$cpu" test --locked --target "$target" --package waymark-models --lib -- kernel:: | tee "$log"
        # A filter that matches no test passes too.
        grep -q '^test result: ok\. [1-9]' "$log" || { echo "no test of the kernels ran" >&2; exit 1; }
    done
}

models() {
    echo "==> models on max"
    emulated max test --locked --target "$target" --package waymark-models
}

program() {
    echo "==> program on max"
    emulated max run --locked --target "$target" --package waymark --bin waymark -- --version
}

parts=("$@")
[ $# -gt 0 ] || parts=(kernels models program)
for part in "${parts[@]}"; do
    case $part in
        kernels | models | program) "$part" ;;
        *)
            echo "unknown part \"$part\": expected kernels, models or program" >&2
            exit 2
            ;;
    esac
done
