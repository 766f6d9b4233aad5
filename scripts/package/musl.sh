#!/usr/bin/env bash
# Builds a program without dynamic libraries, for any Linux on x86-64. It has no CUDA, whose libraries are loaded at run
# time. Not run yet. Zig compiles the C and C++ parts (tokenizers, vector index, allocator) against musl.
#
#   pip install ziglang cargo-zigbuild && rustup target add x86_64-unknown-linux-musl
#   scripts/package/musl.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

target=x86_64-unknown-linux-musl
cargo zigbuild --release --locked --target "$target" --bin waymark
install -D "target/$target/release/waymark" "dist/waymark-$target"
strip "dist/waymark-$target"
ls -l "dist/waymark-$target"
