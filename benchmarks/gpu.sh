#!/usr/bin/env bash
# All proofs that need a GPU, inside about ten minutes: the tests of the GPU kernels on the device,
# equal bits in ten runs of each backward pass, compute-sanitizer, an input of more than 2^31
# elements, times beside PyTorch, and training steps of networks. Writes OUT/gpu.csv,
# OUT/gpu-networks.csv and OUT/gpu.png.
#
#   benchmarks/gpu.sh [--dry-run] [OUT]      OUT: gpu-results by default
#
# --dry-run needs no GPU: it prints the steps, the model of bytes, and checks the benchmark's rows.
set -euo pipefail
cd "$(dirname "$0")/.."

dry=
[ "${1:-}" = --dry-run ] && { dry=--dry-run; shift; }
out=${1:-gpu-results}
mkdir -p "$out"

step() { printf '\n=== %s (after %d s)\n' "$1" "$SECONDS"; shift; if [ -n "$dry" ]; then echo "would run: $*"; else "$@"; fi; }

step "tests on the device" env POOLGRAD_TEST_DEVICE=cuda timeout 240 python -m pytest -q tests/gpu
step "equal bits and 2^31 elements" timeout 120 python benchmarks/gpu.py bits
if command -v compute-sanitizer >/dev/null; then
  step "compute-sanitizer" timeout 120 compute-sanitizer --error-exitcode 1 python benchmarks/gpu.py few
else
  echo "skipped: compute-sanitizer is not installed"
fi
echo
echo "=== times beside PyTorch (after $SECONDS s)"
timeout 180 python benchmarks/gpu.py times --out "$out" $dry
step "training steps of networks" timeout 120 python benchmarks/gpu.py networks --out "$out"
