#!/usr/bin/env bash
# Runs all GPU benchmarks: `bench-gpu`, then its peer on the same shapes and loads, then the ratios, and last the goals,
# judged by all results. On a GPU that never ran `bench-gpu`, use scripts/cuda/first_run.py, which runs part by part.
# `--model PATH` of a SmolLM2 compares its text on GPU and CPU.
# Each `bench-gpu` is ended after BENCH_SECONDS (600 by default); what it saved until then is judged.
# The peer measures as much as it can in PEER_SECONDS (240 by default); the goals are judged in any case.
# usage: gpu.sh BENCH_GPU OUT_DIR [arguments of `bench-gpu`...]     BENCH_GPU: `bench-gpu` built with --features cuda
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: gpu.sh BENCH_GPU OUT_DIR [arguments...]" >&2; exit 2; }
bench_gpu=$1
out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"

# Path of cuBLAS and NVRTC, for example in PyTorch's packages. PyTorch itself finds its own libraries.
library_path=$(python3 "$here/../cuda/machine.py" 2>/dev/null || true)

nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader >"$out/card.txt" || true
status=0
: >"$out/gpu.txt"
: >"$out/stderr.txt"
# Reports of an earlier run must not be judged.
rm -f "$out/check.json" "$out/gpu.json" "$out/peer.json" "$out/goals.json"
# A kernel that faults makes the GPU unusable for its whole process, so the checks run in a process of their own.
# A kernel that hangs may block the process in the driver, where its own limits do not hold, so `timeout` ends it.
# `--foreground` lets Ctrl-C reach it.
bench() {
  LD_LIBRARY_PATH=${library_path:-${LD_LIBRARY_PATH:-}} timeout --foreground -k 15 "${BENCH_SECONDS:-600}" "$bench_gpu" --json "$@" \
    2> >(tee -a "$out/stderr.txt" >&2) | tee -a "$out/gpu.txt" || status=$?
}
case " $* " in
  *" --parts"*) bench "$out/gpu.json" "$@" ;;
  *)
    bench "$out/check.json" "$@" --parts info,check
    bench "$out/gpu.json" "$@" --parts ceilings,gemm,decode,prefill,agentic,profile ;;
esac
# The peer gets those options that both programs know.
common=()
while [ $# -gt 0 ]; do
  case $1 in
    --shapes|--sequences|--prompt|--tokens|--prompts|--prompt-tokens|--rounds|--loops|--turns|--observed|--written|--search-ms)
      common+=("$1" "$2"); shift 2 ;;
    --shapes=*|--sequences=*|--prompt=*|--tokens=*|--prompts=*|--prompt-tokens=*|--rounds=*|--loops=*|--turns=*|--observed=*|--written=*|--search-ms=*)
      common+=("$1"); shift ;;
    *) shift ;;
  esac
done
if python3 -c 'import torch, transformers' 2>/dev/null; then
  ours=()
  [ -s "$out/gpu.json" ] && ours=(--ours "$out/gpu.json")
  seconds=${PEER_SECONDS:-240}
  timeout -k 15 $((seconds + 15)) python3 "$here/gpu_peer.py" --json "$out/peer.json" --seconds "$seconds" \
    "${ours[@]}" "${common[@]}" >"$out/peer.txt" || status=$?
  sed -n '/^ratio/,$p' "$out/peer.txt"
else
  echo "no peer: python3 has no torch or transformers"
fi
judge=()
for report in check gpu; do
  if [ -s "$out/$report.json" ]; then judge+=(--judge "$out/$report.json"); fi
done
if [ ${#judge[@]} -gt 0 ]; then
  if [ -s "$out/peer.json" ]; then judge+=(--peer "$out/peer.json"); fi
  "$bench_gpu" --json "$out/goals.json" "${judge[@]}" | sed -n '/^goal /,$p' | tee "$out/goals.txt" || status=$?
fi
exit $status
