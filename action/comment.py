#!/usr/bin/env python3
"""Write the verdict on a pull request of GitHub, or a merge request of GitLab.

The comment that an earlier run left is updated, so that there is one; it is known by its first
line. All that this is told comes by variables:

    UPROF_WORK                                  the folder with comment.md
    GH_TOKEN, GITHUB_REPOSITORY, UPROF_PULL_REQUEST, GITHUB_API_URL
    UPROF_GITLAB_TOKEN, CI_API_V4_URL, CI_PROJECT_ID, CI_MERGE_REQUEST_IID

It needs Python's standard library alone. A token that may not write costs the comment, not the job:
those of forks never may.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST = 60_000
"""Characters that GitHub takes at most, less room for what is added."""
_PAGE = 100
_ATTEMPTS = 3
_SECONDS = 30


@dataclass(frozen=True)
class Place:
    """Where comments are, and how they are written."""

    comments: str
    """Address that lists them, and takes new ones."""
    one: str
    """Address of one, with {id}."""
    method: str
    """How one is replaced."""
    headers: Mapping[str, str]


def main() -> int:
    """Write the comment; return an exit code."""
    file = Path(os.environ["UPROF_WORK"]) / "comment.md"
    if not file.is_file():
        return 0  # nothing was measured
    place = place_of(os.environ)
    if place is None:
        say("no pull or merge request to comment on, or no token: see docs/ci.md")
        return 0
    body = shortened(file.read_text(encoding="utf-8"))
    mark = body.partition("\n")[0]
    try:
        old = next((one for one in comments(place) if first_line(one) == mark), None)
        if old is None:
            ask(place, "POST", place.comments, {"body": body})
        else:
            ask(place, place.method, place.one.format(id=int(old["id"])), {"body": body})
    except urllib.error.HTTPError as err:
        if err.code in (401, 403):
            say(f"the token may not comment here ({err.code} {err.reason}): no comment")
            return 0
        say(f"the comment could not be written: {err.code} {err.reason}")
        return 1
    except OSError as err:
        say(f"the comment could not be written: {getattr(err, 'reason', err)}")
        return 1
    return 0


def place_of(given: Mapping[str, str]) -> Place | None:
    """Return where to comment; None: this is no pull or merge request."""
    if given.get("GITHUB_REPOSITORY") and given.get("UPROF_PULL_REQUEST"):
        if not given.get("GH_TOKEN"):
            return None
        api = given.get("GITHUB_API_URL") or "https://api.github.com"
        issues = f"{api}/repos/{given['GITHUB_REPOSITORY']}/issues"
        return Place(
            f"{issues}/{int(given['UPROF_PULL_REQUEST'])}/comments",
            f"{issues}/comments/{{id}}",
            "PATCH",
            {
                "Authorization": f"Bearer {given['GH_TOKEN']}",
                "Accept": "application/vnd.github+json",
            },
        )
    if given.get("CI_MERGE_REQUEST_IID") and given.get("UPROF_GITLAB_TOKEN"):
        project = f"{given['CI_API_V4_URL']}/projects/{given['CI_PROJECT_ID']}"
        notes = f"{project}/merge_requests/{int(given['CI_MERGE_REQUEST_IID'])}/notes"
        headers = {"PRIVATE-TOKEN": given["UPROF_GITLAB_TOKEN"]}
        return Place(notes, f"{notes}/{{id}}", "PUT", headers)
    return None


def comments(place: Place) -> Iterator[dict[str, Any]]:
    """Yield all comments, the oldest first."""
    number = 1
    while True:
        page = ask(place, "GET", f"{place.comments}?per_page={_PAGE}&page={number}&sort=asc")
        yield from page
        if len(page) < _PAGE:
            return
        number += 1


def first_line(comment: Mapping[str, Any]) -> str:
    """Return the line that a comment is known by."""
    return str(comment.get("body") or "").partition("\n")[0].rstrip()


def shortened(text: str) -> str:
    """Return what a comment has room for."""
    if len(text) <= LONGEST:
        return text
    kept = text[:LONGEST].rpartition("\n")[0]
    opened = kept.count("<details>") - kept.count("</details>")
    return f"{kept}\n\n(the rest was left out: it is in the job's files)\n" + "</details>" * opened


def ask(place: Place, method: str, address: str, data: Mapping[str, str] | None = None) -> Any:
    """Return what the server answers; where it is busy or away for a moment, it is asked again."""
    if not address.startswith(("https://", "http://")):
        raise OSError(f"{address} is no address of a server")
    request = urllib.request.Request(
        address,
        method=method,
        data=None if data is None else json.dumps(data).encode(),
        headers={**place.headers, "Content-Type": "application/json", "User-Agent": "uprof"},
    )
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as err:
            if err.code < 500 or attempt == _ATTEMPTS:
                raise
        except OSError:
            # A new comment that was written although the answer was lost would be written twice.
            if method == "POST" or attempt == _ATTEMPTS:
                raise
        time.sleep(attempt)
    raise AssertionError("not reached")


def say(text: str) -> None:
    """Tell the log of the job."""
    print(f"uprof: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
