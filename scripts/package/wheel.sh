#!/usr/bin/env bash
# Builds a Python wheel of a program that is already built: `pip install` or `pipx install` puts `waymark` on the path, and
# the module `waymark` is a small typed client.
#
#   cargo build --release --locked --bin waymark
#   scripts/package/wheel.sh target/release/waymark dist
set -euo pipefail
if [ $# -ne 2 ]; then
    echo "usage: $0 PROGRAM FOLDER" >&2
    exit 2
fi
# Without objdump, every program would look static.
command -v objdump >/dev/null || { echo "objdump is missing: install binutils" >&2; exit 1; }
program=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/../.."

version=$("$program" --version | cut -d' ' -f2)
# Version of the oldest C library that has every function that the program calls.
glibc=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1 | cut -d_ -f2 | tr . _ || true)
# A program built by static.sh needs no C library.
platforms=(manylinux_2_17 musllinux_1_1)
if [ -n "$glibc" ]; then
    platforms=("manylinux_$glibc")
fi
platforms=("${platforms[@]/%/_$(uname -m)}")
tag="py3-none-$(IFS=. && echo "${platforms[*]}")"
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

install -D -m 755 "$program" "$root/wheel/waymark-$version.data/scripts/waymark"
strip "$root/wheel/waymark-$version.data/scripts/waymark"
mkdir -p "$root/wheel/waymark"
cp scripts/package/python/waymark/*.py scripts/package/python/waymark/py.typed "$root/wheel/waymark/"
info="$root/wheel/waymark-$version.dist-info"
install -D -m 644 LICENSE "$info/licenses/LICENSE"
cat >"$info/WHEEL" <<WHEEL
Wheel-Version: 1.0
Generator: waymark
Root-Is-Purelib: false
$(printf 'Tag: py3-none-%s\n' "${platforms[@]}")
WHEEL
cat >"$info/METADATA" <<METADATA
Metadata-Version: 2.4
Name: waymark
Version: $version
Summary: Inference server for trained agentic RAG policies, with a small client
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.11
Requires-Dist: httpx2>=2
Description-Content-Type: text/markdown

$(cat scripts/package/python/README.md)
METADATA

python3 -m venv "$root/tools"
"$root/tools/bin/pip" install --quiet --disable-pip-version-check wheel
"$root/tools/bin/wheel" pack --dest-dir "$out" "$root/wheel"
ls -l "$out/waymark-$version-$tag.whl"
