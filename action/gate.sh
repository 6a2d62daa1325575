#!/usr/bin/env bash
# Lets the base revision and the current checkout step in turn; writes the verdict to $UPROF_WORK/comment.md.
# Inputs are environment variables (see action.yml). Needs git and uprof; independent of GitHub and GitLab.
set -euo pipefail
work=${UPROF_WORK:?directory for the base checkout and the reports}
mkdir -p "$work"
work=$(cd "$work" && pwd)
base=$work/base
reports=$work/reports
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=$(git rev-parse --show-prefix) # current directory within the repository

if [[ ${UPROF_BASE_REF:?revision to compare with} =~ ^0{40,}$ ]]; then # the first push of a branch
  echo "uprof gate: the branch is new, there is no base to compare with"
  [ -z "${GITHUB_OUTPUT:-}" ] || echo "outcome=no base" >>"$GITHUB_OUTPUT"
  exit 0
fi
if [[ $UPROF_BASE_REF == -* ]]; then # git would take it for an option such as --upload-pack=COMMAND
  echo "uprof gate: the base revision starts with a dash" >&2
  exit 2
fi
if ! git rev-parse -q --verify --end-of-options "$UPROF_BASE_REF^{commit}" >/dev/null; then
  git fetch -q --depth 1 --end-of-options origin "$UPROF_BASE_REF"
  UPROF_BASE_REF=FETCH_HEAD
fi
# A killed job may have left a directory without its worktree entry, or an entry without its directory.
git worktree remove --force "$base" 2>/dev/null || rm -rf "$base"
git worktree add -q -f --detach "$base" --end-of-options "$UPROF_BASE_REF"
here=$PWD
trap 'git -C "$here" worktree remove --force "$base" || true' EXIT

if [ ! -d "$base/$prefix" ]; then
  echo "uprof gate: the base has no directory $prefix" >&2
  exit 2
fi

# setup SIDE DIR: prepare a checkout in its own environment, which also sees the packages of this one.
# Without separate environments, both sides would use the package that was installed last.
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
set -f # operation:GLOB must not match files
for metric in ${UPROF_METRICS:-}; do metrics+=(--metric "$metric"); done
set +f
rm -rf "$reports" "$work"/verdict.* "$work/comment.md"
code=0
# From the work directory, the sides are named "base" and "head" instead of paths of the runner.
ln -sfn "$here" "$work/head"
revisions="Base $(git -C "$base" rev-parse --short HEAD), head $(git rev-parse --short HEAD)."
cd "$work"
# The gate appends Markdown to GITHUB_STEP_SUMMARY; here this file becomes part of the comment.
GITHUB_STEP_SUMMARY=$work/verdict.md uprof gate "base${prefix:+/${prefix%/}}" head \
  --until-sure "${UPROF_COMMAND:?arguments of uprof run, one workload per line}" \
  ${pythons[@]+"${pythons[@]}"} --rounds "${UPROF_ROUNDS:-12}" --keep reports --max-regress "${UPROF_MAX_REGRESS:-5%}" \
  ${metrics[@]+"${metrics[@]}"} --format junit -o "$work/verdict.xml" --force || code=$?

case $code in
  0) outcome=pass ;;
  1) outcome=regression ;;
  3) outcome=inconclusive ;;
  *) exit "$code" ;;  # not measured: no verdict and no comment
esac

# show_changes DIR: difference of the runs of one workload.
show_changes() {
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
  printf '%s\n' "$revisions"
  if [ "$outcome" != pass ]; then
    for folder in reports reports/*/; do
      folder=${folder%/}
      [ -d "$folder/base-1" ] || continue
      workload=$(basename "$folder")
      [ "$folder" != reports ] || workload=
      printf '\n<details><summary>What changed%s</summary>\n\n' "${workload:+ in $workload}"
      show_changes "$folder"
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
