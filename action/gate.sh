#!/usr/bin/env bash
# Measures the base and the checkout it is run in, in turn, and leaves the verdict in $UPROF_WORK/comment.md.
# All it is told comes by variables (see action.yml); it needs git and uprof, and nothing of GitHub.
set -euo pipefail
work=${UPROF_WORK:?a folder for the base checkout and the reports}
base=$work/base
mkdir -p "$work"

if ! git rev-parse -q --verify "${UPROF_BASE_REF:?the revision to compare with}^{commit}" >/dev/null; then
  git fetch -q --depth 1 origin "$UPROF_BASE_REF"
  UPROF_BASE_REF=FETCH_HEAD
fi
git worktree remove --force "$base" 2>/dev/null || true
git worktree add -q --detach "$base" "$UPROF_BASE_REF"
trap 'git worktree remove --force "$base" || true' EXIT

if [ -n "${UPROF_SETUP:-}" ]; then
  for checkout in "$base" "$PWD"; do
    (cd "$checkout" && bash -euo pipefail -c "$UPROF_SETUP")
  done
fi

metrics=()
for metric in ${UPROF_METRICS:-total}; do metrics+=(--metric "$metric"); done
rm -rf "$work/reports"
code=0
uprof gate "$base" "$PWD" --until-sure "${UPROF_COMMAND:?what uprof run takes}" \
  --rounds "${UPROF_ROUNDS:-10}" --keep "$work/reports" --max-regress "${UPROF_MAX_REGRESS:-5%}" \
  "${metrics[@]}" -o "$work/verdict.md" --force || code=$?

case $code in
  0) outcome=pass ;;
  1) outcome=regression ;;
  3) outcome=inconclusive ;;
  *) exit "$code" ;;  # nothing was measured: no verdict, and no comment of one
esac
{
  echo '<!-- uprof gate -->'
  cat "$work/verdict.md"
  if [ "$outcome" != pass ]; then
    echo
    echo '<details><summary>What changed</summary>'
    echo
    first=() more=()
    for side in base new; do
      mapfile -t reports < <(find "$work/reports" -maxdepth 1 -name "$side-*" | sort -V)
      first+=("${reports[0]}")
      for report in "${reports[@]:1}"; do more+=("--$side" "$report"); done
    done
    uprof diff "${first[@]}" "${more[@]}" --format markdown --top 10 || true
    echo
    echo '</details>'
  fi
} >"$work/comment.md"
[ -z "${GITHUB_OUTPUT:-}" ] || echo "outcome=$outcome" >>"$GITHUB_OUTPUT"
echo "uprof gate: $outcome"
if [ "$outcome" = regression ] || { [ "$outcome" = inconclusive ] && [ "${UPROF_INCONCLUSIVE:-pass}" = fail ]; }; then
  exit "$code"
fi
