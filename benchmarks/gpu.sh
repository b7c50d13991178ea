#!/usr/bin/env bash
# Runs everything that needs a GPU, in at most ten minutes: times beside PyTorch and torch.compile,
# equal bits in ten backward passes, inputs of more than 2^31 elements, training steps of networks,
# the tests of the GPU kernels on the device, and compute-sanitizer. docs/gpu.md describes the
# packages that it needs, and the files that it writes to OUT.
#
#   benchmarks/gpu.sh [--dry-run] [OUT]      OUT: gpu-results by default
#
# A step that fails or exceeds its time does not stop the later ones; the last line lists the failed
# steps. --dry-run needs no GPU: it prints the steps, checks the rows and prints the model of bytes.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

dry=
[ "${1:-}" = --dry-run ] && { dry=yes; shift; }
out=${1:-gpu-results}
mkdir -p "$out" || exit
failed=()

step() {  # step SECONDS NAME COMMAND...
  local limit=$1 name=$2 status
  shift 2
  printf '\n=== %s (at %d s, at most %d s)\n' "$name" "$SECONDS" "$limit"
  if [ -n "$dry" ]; then
    echo "would run: $*"
    return
  fi
  timeout --kill-after 5 "$limit" "$@"
  status=$?
  if [ "$status" -ne 0 ]; then
    echo "FAILED with status $status: $name"
    failed+=("$name")
  fi
}

gpu() {  # gpu SECONDS NAME WHAT: a step of gpu.py, which stops by itself before its time is over
  step "$1" "$2" python benchmarks/gpu.py "$3" --out "$out" --seconds "$(($1 - 10))"
}

pytest=(env POOLGRAD_TEST_DEVICE=cuda python -m pytest -q)

gpu 110 "times beside PyTorch" times
gpu 145 "times beside torch.compile" compiled
gpu 45 "equal bits, more than 2^31 elements" bits
gpu 80 "training steps of networks" networks
gpu 45 "operators without kernels" without
# Triton compiles on the CPU, so several processes. Without the caching allocator of PyTorch,
# compute-sanitizer sees an access outside of a tensor; it comes last, when kernels are compiled.
step 130 "tests on the device" "${pytest[@]}" -n 8 --maxfail 20 tests/gpu
if command -v compute-sanitizer >/dev/null; then
  step 60 "compute-sanitizer" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
    compute-sanitizer --error-exitcode 1 "${pytest[@]}" \
    tests/gpu/test_functions.py tests/gpu/test_bits.py -k "textbooks or packed"
else
  printf '\nskipped: compute-sanitizer is not installed\n'
fi
step 20 "summary and picture" python benchmarks/gpu_table.py "$out"
[ -n "$dry" ] && python benchmarks/gpu.py times --dry-run

printf '\nafter %d s; failed steps: %s\n' "$SECONDS" "$(IFS=,; echo "${failed[*]:-none}")"
[ "${#failed[@]}" -eq 0 ]
