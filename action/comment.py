#!/usr/bin/env python3
"""Write the verdict as a comment on a GitHub pull request or a GitLab merge request.

A comment of an earlier run is updated: one with the same first line, written by the same account.
Comments of other accounts are ignored, since whoever posts the first line could otherwise receive
and edit the verdict. Environment variables:

    UPROF_WORK                                  directory of comment.md
    GH_TOKEN, GITHUB_REPOSITORY, UPROF_PULL_REQUEST, GITHUB_API_URL
    UPROF_COMMENT_AUTHOR                        login of the account that owns GH_TOKEN
    UPROF_GITLAB_TOKEN, CI_API_V4_URL, CI_PROJECT_ID, CI_MERGE_REQUEST_IID

Uses the standard library only. If the token may not write, for example in a pull request from a
fork, the job continues without a comment.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Maximum length of a comment; GitHub accepts 65,536 characters.
MAX_CHARACTERS = 60_000
# Account of the token that GitHub Actions gives to a job.
GITHUB_ACCOUNT = "github-actions[bot]"
_COMMENTS_PER_PAGE = 100
_ATTEMPTS = 3
_TIMEOUT_S = 30


@dataclass(frozen=True)
class Thread:
    """Comments of one pull or merge request, and how to change them."""

    # URL that lists comments and accepts new ones.
    comments: str
    # URL of one comment, with {id}.
    comment: str
    # HTTP method that replaces a comment.
    update_method: str
    headers: Mapping[str, str]
    # Login of the account (GitHub), or URL that returns the account of the token (GitLab).
    account: str

    def written_by_us(self) -> Callable[[Mapping[str, Any]], bool]:
        """Return a function that is true for comments of the token's account."""
        if not self.account.startswith("http"):
            return lambda comment: (comment.get("user") or {}).get("login") == self.account
        account_id = request(self, "GET", self.account)["id"]
        return lambda comment: (comment.get("author") or {}).get("id") == account_id


def main() -> int:
    """Write the comment and return an exit code."""
    file = Path(os.environ["UPROF_WORK"]) / "comment.md"
    if not file.is_file():
        return 0  # nothing was measured
    thread = thread_of(os.environ)
    if thread is None:
        log("not a pull or merge request, or no token: see docs/ci.md")
        return 0
    body = shorten(file.read_text(encoding="utf-8"))
    mark = body.partition("\n")[0]
    try:
        is_ours = thread.written_by_us()
        earlier = (one for one in comments(thread) if first_line(one) == mark and is_ours(one))
        comment = next(earlier, None)
        if comment is None:
            request(thread, "POST", thread.comments, {"body": body})
        else:
            address = thread.comment.format(id=int(comment["id"]))
            request(thread, thread.update_method, address, {"body": body})
    except urllib.error.HTTPError as err:
        if err.code in (401, 403):
            log(f"the token may not comment here ({err.code} {err.reason}): no comment")
            return 0
        log(f"cannot write the comment: {err.code} {err.reason}")
        return 1
    except OSError as err:
        log(f"cannot write the comment: {getattr(err, 'reason', err)}")
        return 1
    return 0


def thread_of(environment: Mapping[str, str]) -> Thread | None:
    """Return the comments of this job's pull or merge request, or None if there is none."""
    get = environment.get
    if get("GITHUB_REPOSITORY") and get("UPROF_PULL_REQUEST"):
        if not get("GH_TOKEN"):
            return None
        api = get("GITHUB_API_URL") or "https://api.github.com"
        issues = f"{api}/repos/{environment['GITHUB_REPOSITORY']}/issues"
        return Thread(
            f"{issues}/{int(environment['UPROF_PULL_REQUEST'])}/comments",
            f"{issues}/comments/{{id}}",
            "PATCH",
            {
                "Authorization": f"Bearer {environment['GH_TOKEN']}",
                "Accept": "application/vnd.github+json",
            },
            # The default token cannot ask which account it belongs to.
            get("UPROF_COMMENT_AUTHOR") or GITHUB_ACCOUNT,
        )
    if get("CI_MERGE_REQUEST_IID") and get("UPROF_GITLAB_TOKEN"):
        api = environment["CI_API_V4_URL"]
        project = f"{api}/projects/{environment['CI_PROJECT_ID']}"
        notes = f"{project}/merge_requests/{int(environment['CI_MERGE_REQUEST_IID'])}/notes"
        headers = {"PRIVATE-TOKEN": environment["UPROF_GITLAB_TOKEN"]}
        return Thread(notes, f"{notes}/{{id}}", "PUT", headers, f"{api}/user")
    return None


def comments(thread: Thread) -> Iterator[dict[str, Any]]:
    """Yield all comments, oldest first."""
    number = 1
    while True:
        query = f"?per_page={_COMMENTS_PER_PAGE}&page={number}&sort=asc"
        page = request(thread, "GET", thread.comments + query)
        yield from page
        if len(page) < _COMMENTS_PER_PAGE:
            return
        number += 1


def first_line(comment: Mapping[str, Any]) -> str:
    """Return the first line of a comment, which identifies the gate."""
    return str(comment.get("body") or "").partition("\n")[0].rstrip()


def shorten(text: str) -> str:
    """Return `text` cut to MAX_CHARACTERS at the end of a line, with `<details>` closed."""
    if len(text) <= MAX_CHARACTERS:
        return text
    kept = text[:MAX_CHARACTERS].rpartition("\n")[0]
    opened = kept.count("<details>") - kept.count("</details>")
    return f"{kept}\n\n(truncated; the job's files have the rest)\n" + "</details>" * opened


def request(
    thread: Thread, method: str, address: str, data: Mapping[str, str] | None = None
) -> Any:
    """Send a request and return the decoded answer; temporary failures are retried."""
    if not address.startswith(("https://", "http://")):
        raise OSError(f"{address} is not an HTTP address")
    message = urllib.request.Request(
        address,
        method=method,
        data=None if data is None else json.dumps(data).encode(),
        headers={**thread.headers, "Content-Type": "application/json", "User-Agent": "uprof"},
    )
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(message, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as err:
            if err.code < 500 or attempt == _ATTEMPTS:
                raise
        except OSError:
            # A POST whose answer was lost may have succeeded: a retry could write it twice.
            if method == "POST" or attempt == _ATTEMPTS:
                raise
        time.sleep(attempt)
    raise AssertionError("not reached")


def log(text: str) -> None:
    """Print a message to the log of the job."""
    print(f"uprof: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
