#!/usr/bin/env bash
# Everything that only a GPU can show, in one command: bash scripts/validate_on_gpu.sh [FOLDER]
# Needs a CUDA (or ROCm) build of torch in the current Python and a GPU that nobody else uses.
# What it prints at the end belongs into docs/validation.md.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-.cache/validation/gpu}
python=${PYTHON:-python3}
mkdir -p "$out"
failed=()

step() {  # step NAME COMMAND...: run it, keep what it says, go on
  local name=$1
  shift
  echo "== $name: $*"
  if "$@" >"$out/$name.txt" 2>&1; then echo "   fine"; else
    failed+=("$name")
    echo "   FAILED, see $out/$name.txt"
  fi
}

"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  { echo "validate: torch finds no GPU here"; exit 4; }
"$python" -m pip install -q -e '.[torch,dev]' nvidia-ml-py || echo "validate: could not install, going on"

step doctor "$python" -m unified_prof doctor
step tests "$python" -m pytest -n auto -m 'not clients and not timing' tests/tracking tests/backends tests/device
step truth "$python" scripts/bench_tracking.py --device cuda --rounds 10 # exits 1 beyond 2 %
for example in mlp transformer; do
  for report in run-time,memory timeline; do
    step "$example-$report" "$python" -m unified_prof run --backend cuda --force \
      --report "$report" -o "$out/$example-$report" "examples/$example.py"
    step "$example-$report-report" "$python" -m unified_prof report "$out/$example-$report"
  done
done
step timeline-details "$python" -m unified_prof run --backend cuda --force --report timeline \
  --timeline-detail shapes,stacks,memory -o "$out/details" examples/transformer.py

echo
"$python" - <<'PYTHON'
import torch

print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
PYTHON
cat "$out/truth.txt"
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all fine"
