#!/usr/bin/env bash
# Builds programs without dynamic libraries, for any Linux of this machine's architecture: glibc, libstdc++ and the
# allocator are linked in. They have no CUDA, whose libraries are loaded at run time. docs/serving.md says what else
# they lack.
#
#   scripts/package/static.sh dist                     # waymark
#   scripts/package/static.sh dist waymark train
set -euo pipefail
if [ $# -lt 1 ]; then
    echo "usage: $0 FOLDER [PROGRAM...]" >&2
    exit 2
fi
mkdir -p "$1"
out=$(realpath "$1")
shift
programs=("${@:-waymark}")
cd "$(dirname "$0")/../.."

# With --target, the flags do not apply to build scripts and procedural macros, which must stay dynamic.
target=$(rustc -vV | sed -n 's/^host: //p')
bins=()
for program in "${programs[@]}"; do
    bins+=(--bin "$program")
done
flags="${RUSTFLAGS:-} -C target-feature=+crt-static"
RUSTFLAGS=$flags "${CARGO:-cargo}" build --release --locked --target "$target" "${bins[@]}"

for program in "${programs[@]}"; do
    built="${CARGO_TARGET_DIR:-target}/$target/release/$program"
    if readelf --dynamic --program-headers "$built" | grep -E 'NEEDED|INTERP'; then
        echo "$built needs dynamic libraries" >&2
        exit 1
    fi
    install "$built" "$out/$program"
    strip "$out/$program"
    "$out/$program" --version
done
ls -l "${programs[@]/#/$out/}"
