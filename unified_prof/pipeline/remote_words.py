"""What file systems elsewhere complain of, in words of ours."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from unified_prof.errors import UprofError

_CREDENTIALS = (
    "credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, "
    "AWS_ENDPOINT_URL) or the files of the service's own tools"
)


_UNKNOWN_USER = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}
_SILENT = {
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ClientConnectorError"),
    *("ConnectionError", "TimeoutError", "ConnectionClosedError", "gaierror", "FSTimeoutError"),
}
"""Names of exceptions, as the packages that have them are not imported for this."""


@contextmanager
def in_words(location: str, kind: type[UprofError]) -> Iterator[None]:
    """Turn what file systems and their services raise into an error of ours."""
    try:
        yield
    except UprofError:
        raise
    except Exception as err:
        text, hint = _words(err)
        raise kind(f"{location}: {text}", hint=hint, slug="remote-storage") from err


def _words(err: Exception) -> tuple[str, str | None]:
    kinds = {kind.__name__ for cause in _causes(err) for kind in type(cause).__mro__}
    text = " ".join(str(err).split())
    if kinds & _UNKNOWN_USER:
        return "there are no credentials for it", _CREDENTIALS
    if "FileNotFoundError" in kinds:
        if "bucket does not exist" in text.lower() or "nosuchbucket" in text.lower():
            return "there is no such bucket", None
        return "no such file", None
    if "PermissionError" in kinds:
        return "access is denied", _CREDENTIALS
    if kinds & _SILENT:
        return "its service does not answer", "AWS_ENDPOINT_URL names another one than Amazon's"
    if isinstance(err, OSError):
        if err.errno == errno.ENOSPC:
            return "no space left for a copy", "TMPDIR names another folder for temporary files"
        return err.strerror or text, None
    return f"{type(err).__name__}: {text}", None


def _causes(err: BaseException | None) -> Iterator[BaseException]:
    while err is not None:
        yield err
        err = err.__cause__ or err.__context__
