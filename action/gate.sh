#!/usr/bin/env bash
# Measures the base and the checkout it is run in, in turn, and leaves the verdict in $UPROF_WORK/comment.md.
# All it is told comes by variables (see action.yml); it needs git and uprof, and nothing of GitHub or GitLab.
set -euo pipefail
work=${UPROF_WORK:?a folder for the base checkout and the reports}
mkdir -p "$work"
work=$(cd "$work" && pwd)
base=$work/base
reports=$work/reports
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=$(git rev-parse --show-prefix) # where in the repository this is run

if [[ ${UPROF_BASE_REF-} =~ ^0{40,}$ ]]; then # how a push names what came before a branch's first commit
  echo "uprof gate: the branch is new, so there is nothing to compare with"
  [ -z "${GITHUB_OUTPUT:-}" ] || echo "outcome=no base" >>"$GITHUB_OUTPUT"
  exit 0
fi
if ! git rev-parse -q --verify "${UPROF_BASE_REF:?the revision to compare with}^{commit}" >/dev/null; then
  git fetch -q --depth 1 origin "$UPROF_BASE_REF"
  UPROF_BASE_REF=FETCH_HEAD
fi
# What a job left that was killed may be a folder without its entry, or an entry without its folder.
git worktree remove --force "$base" 2>/dev/null || rm -rf "$base"
git worktree add -q -f --detach "$base" "$UPROF_BASE_REF"
here=$PWD
trap 'git -C "$here" worktree remove --force "$base" || true' EXIT

if [ ! -d "$base/$prefix" ]; then
  echo "uprof gate: the base has no folder $prefix: there is nothing to compare with" >&2
  exit 2
fi

# setup SIDE FOLDER: make a checkout ready, with an environment of its own that sees all of this one:
# what both install by one name (pip install -e ., another version of a library) would be the last one's.
pythons=()
setup() {
  local python
  python=$(python "$scripts/environment.py" "$work/environment-$1")
  (
    export VIRTUAL_ENV=$work/environment-$1
    PATH=$(dirname "$python"):$PATH
    cd "$2" && bash -euo pipefail -c "$UPROF_SETUP"
  )
  pythons+=("--$1-python" "$python")
}
if [ -n "${UPROF_SETUP:-}" ]; then
  setup base "$base/$prefix"
  setup new "$PWD"
fi

metrics=()
set -f # a metric may be operation:GLOB, which means no files
for metric in ${UPROF_METRICS:-total}; do metrics+=(--metric "$metric"); done
set +f
rm -rf "$reports" "$work"/verdict.* "$work/comment.md"
code=0
# Named from the work folder, the sides are "base" and "head" to the reader, not paths of a runner.
ln -sfn "$here" "$work/head"
said="Base $(git -C "$base" rev-parse --short HEAD), head $(git rev-parse --short HEAD)."
cd "$work"
# The verdict as Markdown is what the gate adds to the summary of a job, beside its report for machines.
GITHUB_STEP_SUMMARY=$work/verdict.md uprof gate "base${prefix:+/${prefix%/}}" head \
  --until-sure "${UPROF_COMMAND:?what uprof run takes, of several workloads a line each}" \
  ${pythons[@]+"${pythons[@]}"} --rounds "${UPROF_ROUNDS:-10}" --keep reports --max-regress "${UPROF_MAX_REGRESS:-5%}" \
  "${metrics[@]}" --format junit -o "$work/verdict.xml" --force || code=$?

case $code in
  0) outcome=pass ;;
  1) outcome=regression ;;
  3) outcome=inconclusive ;;
  *) exit "$code" ;;  # nothing was measured: no verdict, and no comment of one
esac

# what_changed FOLDER: the difference of the runs of one workload.
what_changed() {
  local first=() more=() side found
  for side in base new; do
    mapfile -t found < <(find "$1" -maxdepth 1 -name "$side-*" | sort -V)
    first+=("${found[0]}")
    for report in "${found[@]:1}"; do more+=("--$side" "$report"); done
  done
  uprof diff "${first[@]}" "${more[@]}" --format markdown --top 10 || true
}

{
  echo "<!-- uprof gate${UPROF_NAME:+ $UPROF_NAME} -->"
  [ -z "${UPROF_NAME:-}" ] || printf '**%s**\n\n' "$UPROF_NAME"
  cat "$work/verdict.md"
  printf '%s\n' "$said"
  if [ "$outcome" != pass ]; then
    for folder in reports reports/*/; do
      folder=${folder%/}
      [ -d "$folder/base-1" ] || continue
      workload=$(basename "$folder")
      [ "$folder" != reports ] || workload=
      printf '\n<details><summary>What changed%s</summary>\n\n' "${workload:+ in $workload}"
      what_changed "$folder"
      printf '\n</details>\n'
    done
  fi
} >"$work/comment.md"
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$work/verdict.md" >>"$GITHUB_STEP_SUMMARY"
[ -z "${GITHUB_OUTPUT:-}" ] || echo "outcome=$outcome" >>"$GITHUB_OUTPUT"
echo "uprof gate: $outcome"
if [ "$outcome" = regression ] || { [ "$outcome" = inconclusive ] && [ "${UPROF_INCONCLUSIVE:-pass}" = fail ]; }; then
  exit "$code"
fi
