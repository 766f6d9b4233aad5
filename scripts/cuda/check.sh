#!/usr/bin/env bash
# Compiles every kernel as the program does on a GPU, with NVRTC and without any header, for several architectures and
# all widths of heads, then with ptxas; prints registers, spills and shared memory, and fails if anything does not
# compile or spills. Needs python3 with pip and unzip, but neither a GPU nor CUDA. The compilers stay under target/cuda.
# usage: scripts/cuda/check.sh [ARCHITECTURE...]        80, 90a and 120 by default
set -euo pipefail
cd "$(dirname "$0")/../.."
ROOT=target/cuda
KERNELS=models/src/cuda/kernel
T=$ROOT/cu/nvidia/cu13
# CUDA 13.0, whose code every driver of the same generation accepts.
if [ ! -x "$T/bin/ptxas" ] || [ ! -e "$T/lib/libnvrtc.so.13" ]; then
  mkdir -p "$ROOT/wheels"
  python3 -m pip download -q --no-deps -d "$ROOT/wheels" nvidia-cuda-nvcc==13.0.88 nvidia-cuda-nvrtc==13.0.88
  for wheel in "$ROOT"/wheels/nvidia_cuda_{nvcc,nvrtc}-13.0.*.whl; do
    unzip -q -o "$wheel" 'nvidia/*' -d "$ROOT/cu"
  done
  chmod +x "$T"/bin/*
fi
export LD_LIBRARY_PATH=$PWD/$T/lib
mkdir -p "$ROOT/check"
parts=$(sed -n 's/.*include_str!("cu\/\(.*\)").*/\1/p' "$KERNELS/source.rs")
options=$(sed -n 's/^pub const OPTIONS.*= \[\(.*\)\];/\1/p' "$KERNELS/source.rs" | tr -d '",')
dims=$(sed -n 's/^pub const HEAD_DIMS.*= \[\(.*\)\];/\1/p' "$KERNELS/layout.rs" | tr -d ',')
if [ -z "$parts" ] || [ -z "$options" ] || [ -z "$dims" ]; then
  echo "no PARTS or OPTIONS in $KERNELS/source.rs, or no HEAD_DIMS in $KERNELS/layout.rs: adapt the patterns in $0" >&2
  exit 1
fi
failed=0
for arch in "${@:-80 90a 120}"; do for arch in $arch; do for dim in $dims; do
  unit=$ROOT/check/kernels-$dim.cu
  { echo "#define HEAD_DIM $dim"; for part in $parts; do echo "#line 1 \"$part\""; cat "$KERNELS/cu/$part"; done; } > "$unit"
  ptx=$ROOT/check/kernels-$dim-$arch.ptx
  python3 scripts/cuda/nvrtc.py "$T/lib/libnvrtc.so.13" "$unit" "$ptx" "--gpu-architecture=compute_$arch" $options
  echo "sm_$arch, heads of $dim"
  # ptxas reports only static shared memory, not the dynamic shared memory of a launch.
  "$T/bin/ptxas" -arch="sm_$arch" -v -o "$ROOT/check/kernels-$dim-$arch.cubin" "$ptx" 2>&1 | awk '
    /Compiling entry function/ { split($0, quoted, "\x27"); name = quoted[2] }
    /spill stores/ { match($0, /[0-9]+ bytes spill stores/); spilled = substr($0, RSTART) + 0; stack = $1 + 0 }
    /Used [0-9]+ registers/ {
      match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5) + 0
      shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0
      printf "  %-20s %3d registers %5d B shared %4d B stack %4d B spilled\n", name, registers, shared, stack, spilled
      bad += spilled > 0
    }
    /error|warning/ { print; bad++ }
    END { exit bad > 0 }' || failed=1
done; done; done
exit $failed
