#!/usr/bin/env bash
# Memory errors on the GPU: some operator families and the C++ tests under compute-sanitizer.
#
#   tools/memcheck.sh PYTHON [C++ TESTS]        (default: build/release/pygraph_tests)
#
# A capture into phantom memory needs torch's caching allocator, so what memcheck sees of torch's
# memory is whole segments: it finds accesses outside of them, to phantom addresses that are no
# longer mapped, and misaligned ones. Failed API calls are not counted; some are meant to fail.
# Each part may take MEMCHECK_SECONDS (default 300).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

(($#)) || { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
PYTHON=$1
TESTS=${2:-build/release/pygraph_tests}
LIMIT=${MEMCHECK_SECONDS:-300}

# One family per kind of node and parameter: products, packed blocks, tables of addresses, copies,
# fills, written arguments, pointers in device memory, scratch memory.
FAMILIES=(mm-fp32 baddbmm mm-bf16 addmm-with-bias conv2d-NCHW-fp32 layer_norm log_softmax
  cat-of-16 foreach-addcdiv fused-AdamW index_put fills-and-copies writes-into-views
  sort-of-rows sum-over-many-blocks fft-two)

find_sanitizer() {
  local candidate
  for candidate in compute-sanitizer "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" \
    "${CUDA_HOME:-/usr/local/cuda}/compute-sanitizer/compute-sanitizer"; do
    if command -v "$candidate"; then return; fi
  done
  printf '%s\n' "memcheck: compute-sanitizer not found on PATH or under CUDA_HOME;" \
    "it is part of the CUDA toolkit (package cuda-sanitizer)" >&2
  return 1
}

SANITIZER=$(find_sanitizer)
OUTPUT=$(mktemp)
trap 'rm -f "$OUTPUT"' EXIT
STATUS=0
SUMMARY=()

memcheck() {  # memcheck NAME PROGRAM...
  local name=$1 status=0 start=$SECONDS errors
  shift
  printf '== memcheck: %s\n' "$name"
  env -u PYTORCH_NO_CUDA_MEMORY_CACHING timeout --kill-after=10 "$LIMIT" \
    "$SANITIZER" --tool memcheck --error-exitcode 1 --report-api-errors no \
    --target-processes application-only --launch-timeout "$LIMIT" --print-limit 20 "$@" 2>&1 | tee "$OUTPUT" || status=$?
  errors=$(grep -o 'ERROR SUMMARY: .*' "$OUTPUT" | tail -1 || true)
  if ((status == 124 || status == 137)); then errors="stopped after $LIMIT s"; fi
  # Without a summary nothing was checked, whatever the status says.
  if [[ -z $errors ]]; then errors="no summary" status=1; fi
  SUMMARY+=("$(printf '%-64s %4d s  exit %d  %s' "$name" $((SECONDS - start)) "$status" "$errors")")
  if ((status)); then STATUS=1; fi
}

printf -v expression ' or %s' "${FAMILIES[@]}"
memcheck "operator families" "$PYTHON" -m pytest -q -p no:cacheprovider tests/gpu/test_families.py \
  -k "test_family and (${expression# or })"
if [[ -x $TESTS ]]; then
  # The twin is the host's. Each test in a process of its own: compute-sanitizer of CUDA 13.0 now and
  # then crashes in cuGraphLaunch in one that has launched graphs of several modules.
  while read -r test; do
    memcheck "C++ ${test//\/real/}" "$TESTS" --gtest_filter="$test"
  done < <("$TESTS" --gtest_list_tests --gtest_filter='*/real*' |
    awk '/^[^ ].*\.$/ {suite = $1; next} /^  / {print suite $1}')
else
  SUMMARY+=("C++ tests: $TESTS is not built (./run test builds it)")
  STATUS=1
fi
printf '%s\n' "${SUMMARY[@]}"
exit "$STATUS"
