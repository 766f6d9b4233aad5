#!/usr/bin/env bash
# Builds a Python wheel that carries the program: `pipx install dist/waymark-*.whl` puts `waymark` on the path. It holds no
# Python code. Not run yet.
#
#   pip install maturin
#   scripts/package/wheel.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

maturin build --release --locked --strip --manifest-path Cargo.toml --bindings bin --out dist
ls -l dist/*.whl
