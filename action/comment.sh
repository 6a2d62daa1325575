#!/usr/bin/env bash
# Writes the verdict on the pull request: into the comment that an earlier run left, else into a new one.
set -euo pipefail
body=${UPROF_WORK:?}/comment.md
[ -f "$body" ] || exit 0
pull=${UPROF_PULL_REQUEST:?}
comments="repos/${GITHUB_REPOSITORY:?}/issues/$pull/comments"
old=$(gh api --paginate "$comments" --jq '.[] | select(.body | startswith("<!-- uprof gate -->")) | .id' | head -n 1)
if [ -n "$old" ]; then
  gh api -X PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$old" -F body=@"$body" >/dev/null
else
  gh api -X POST "$comments" -F body=@"$body" >/dev/null
fi
