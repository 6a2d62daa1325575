#!/usr/bin/env bash
# Everything that only an Ascend NPU can show, in one command: bash scripts/validate_on_npu.sh [FOLDER]
# Needs CANN with its set_env.sh sourced, torch_npu in the current Python, and an NPU nobody else uses.
# What it prints at the end belongs into docs/validation.md.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-.cache/validation/npu}
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

command -v msprof >/dev/null || { echo "validate: msprof is not on PATH (set_env.sh?)"; exit 4; }
"$python" -c 'import sys, torch, torch_npu; sys.exit(not torch.npu.is_available())' ||
  { echo "validate: torch finds no NPU here"; exit 4; }
"$python" -m pip install -q -e '.[npu,dev]' || echo "validate: could not install, going on"

step doctor "$python" -m unified_prof doctor
step tests "$python" -m pytest -n 0 -m 'not clients and not timing' tests/backends/test_npu.py tests/cli/test_run_npu.py
for example in mlp transformer; do
  for report in timeline run-time,memory timeline,run-time,memory; do
    step "$example-$report" "$python" -m unified_prof run --backend npu --force \
      --report "$report" -o "$out/$example-$report" "examples/$example.py"
    step "$example-$report-report" "$python" -m unified_prof report "$out/$example-$report"
  done
done
# The same recording by both exporters: ours and msprof's own.
step native "$python" -m unified_prof run --backend npu --force --exporter native \
  -o "$out/native" examples/transformer.py
step native-diff "$python" -m unified_prof diff "$out/transformer-timeline" "$out/native"

echo
"$python" -c 'import torch, torch_npu; print(torch.__version__, torch_npu.__version__, torch.npu.get_device_name())'
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all fine"
