"""Reads and writes recordings and partials by URL, in S3 and other storage supported by fsspec.

Local paths are used without a copy. Credentials and endpoints are read by the packages that fsspec
uses, from the environment and configuration files of the service (`AWS_ACCESS_KEY_ID`,
`AWS_ENDPOINT_URL`, `~/.aws`, ...) and from fsspec's own variables (`FSSPEC_S3_...`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from unified_prof.errors import (
    OutputError,
    RawFormatError,
    UprofError,
    UsageError,
    missing_package,
    system_errors,
)
from unified_prof.sqlite.atomic import (
    output_errors,
    remove_abandoned,
    replacing,
    temporary_folder,
    write_small,
)

_CREDENTIALS = (
    "set credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
    "AWS_PROFILE, AWS_ENDPOINT_URL) or in the files of the service's own tools"
)

# Names of exceptions, because their packages are not imported here.
_UNKNOWN_USER = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}
_NO_RESPONSE = {
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ClientConnectorError"),
    *("ConnectionError", "TimeoutError", "ConnectionClosedError", "gaierror", "FSTimeoutError"),
}


@contextmanager
def storage_errors(location: str, kind: type[UprofError]) -> Iterator[None]:
    """Context manager that raises errors of storage services as `kind`, with location and hint."""
    try:
        yield
    except UprofError:
        raise
    except Exception as err:
        text, hint = _explain(err, location)
        raise kind(f"{location}: {text}", hint=hint, slug="remote-storage") from err


def _explain(err: Exception, location: str) -> tuple[str, str | None]:
    kinds = {kind.__name__ for cause in _causes(err) for kind in type(cause).__mro__}
    text = " ".join(str(err).split())
    if kinds & _UNKNOWN_USER:
        return "credentials missing", _CREDENTIALS
    if "FileNotFoundError" in kinds:
        if "bucket does not exist" in text.lower() or "nosuchbucket" in text.lower():
            return "no such bucket", None
        return "no such file", None
    if "PermissionError" in kinds:
        return "access denied", _CREDENTIALS
    if kinds & _NO_RESPONSE:
        hint = "set AWS_ENDPOINT_URL for a service other than Amazon's"
        return "the service does not respond", hint if location.startswith("s3") else None
    if isinstance(err, OSError):
        if err.errno == errno.ENOSPC:
            return "no space left for a copy", "set TMPDIR to another directory for temporary files"
        return err.strerror or text, None
    return f"{type(err).__name__}: {text}", None


def _causes(err: BaseException | None) -> Iterator[BaseException]:
    while err is not None:
        yield err
        err = err.__cause__ or err.__context__


_URL = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]+)://")
_MAGIC = re.compile(r"[*?\[]")

# Recordings that are directories, recognized by the names of their files; all files are fetched.
_DIRECTORIES = (
    re.compile(
        r"(?P<directory>(?:.*?/)??[^/]*_ascend_pt)/(?:PROF_|ASCEND_PROFILER_OUTPUT/|FRAMEWORK/)"
    ),
    re.compile(r"(?P<directory>(?:.*?/)??PROF_[^/]*)/(?:host|device_\d+)/"),
)
# Endings of files below a directory that can be recordings.
_FILES = (".db", ".sqlite", ".sqlite3", ".json", ".json.gz", ".parquet")
_FACTS_OF_RANK = re.compile(r"(?:\A|/)(?:profiler_(?:info|metadata)[^/]*\.json)\Z")
_MADE_DATABASE = re.compile(r"(?:\A|/)ASCEND_PROFILER_OUTPUT/[^/]*\.db\Z")

# Storage where objects appear complete or not at all; elsewhere files are written and then renamed.
_OBJECTS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"}

# Options of file systems: limits on waiting for a service that does not respond.
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 10,
            "read_timeout": 60,
            "retries": {"max_attempts": 3, "mode": "standard"},
        }
    }
}
# Package that reads a scheme.
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
}
# Keys that hold the time of a file, by file system.
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "created")


class Remote(Struct, frozen=True):
    """A recording or another file in remote storage."""

    url: str
    size_bytes: int
    # Hash of the ETags, or of sizes and times if there are none; changes with the content.
    stamp: str
    files: tuple[str, ...]  # Files relative to `url`; [""] if the recording itself is a file.

    @property
    def name(self) -> str:
        """Last component of the URL."""
        return PurePosixPath(self.url).name


def is_remote(location: str) -> bool:
    """Return True for a URL other than `file://`."""
    match = _URL.match(location)
    return match is not None and match["scheme"].lower() not in ("file", "local")


def local_path(location: str) -> Path:
    """Return the path of a local location (a path or a `file://` URL)."""
    if _URL.match(location):
        parts = urlsplit(location)
        return Path(unquote(parts.netloc + parts.path))
    return Path(location)


def join(location: str, name: str) -> str:
    """Return the location of `name` in a directory."""
    return f"{location.rstrip('/')}/{name}"


def find(url: str) -> list[Remote]:
    """Return the recording at a URL, or possible recordings in a directory or matching a pattern.

    Raises:
        RawFormatError: nothing is there, or the service fails.
        UsageError: the scheme is not supported, or its package is missing.
    """
    with storage_errors(url, RawFormatError):
        system, path = _open(url)
        if _MAGIC.search(path):
            matches = sorted(system.glob(path))
            if not matches:
                raise RawFormatError(
                    f"{url}: no such file",
                    hint="the pattern matches nothing",
                    slug="no-such-recording",
                )
        else:
            matches = [path]
        infos: dict[str, Mapping[str, Any]] = {}
        named: list[str] = []
        for match in matches:
            below = system.find(match, detail=True)
            infos.update(below)
            if list(below) == [match]:
                named.append(match)
        if not infos:
            system.info(path)  # raises the reason: no bucket, access denied
            raise RawFormatError(f"{url} is empty", slug="empty-file")
        result = _recordings(url, path, infos, set(named))
    if not result:
        raise RawFormatError(
            f"{url} contains no recording",
            hint=(
                f"expected PROF_* and *_ascend_pt directories, or files named *{', *'.join(_FILES)}"
            ),
            slug="not-a-recording",
        )
    return result


@contextmanager
def fetch(location: str | Remote) -> Iterator[Path]:
    """Context manager that yields a local path; copies of remote files are removed on exit.

    Raises RawFormatError if it does not exist, or cannot be read, and OutputError if there is no
    space for the copy.
    """
    if isinstance(location, str) and not is_remote(location):
        yield local_path(location)
        return
    url = location if isinstance(location, str) else location.url
    with ExitStack() as resources:
        directory = resources.enter_context(temporary_folder())
        with storage_errors(url, RawFormatError):
            system, path = _open(url)
            files = location.files if isinstance(location, Remote) else _files(system, path)
            target = directory / PurePosixPath(path.rstrip("/")).name
            for name in files:
                if ".." in PurePosixPath(name).parts:  # a key can contain anything
                    raise RawFormatError(f"{join(url, name)}: unsafe file name", slug="unsafe-name")
                into = target / name if name else target
                into.parent.mkdir(parents=True, exist_ok=True)
                system.get_file(f"{path.rstrip('/')}/{name}" if name else path, str(into))
        yield target


@contextmanager
def fetch_part(location: str, name: str) -> Iterator[Path]:
    """Yield a local path; if a directory is at a URL, that of a copy of its file `name` only.

    Raises RawFormatError if it does not exist, or cannot be read.
    """
    if is_remote(location) and not location.endswith(_FILES):
        location = join(location, name)
    with fetch(location) as path:
        yield path


class StorageDirectory:
    """A local or remote directory to which files are written atomically."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.is_remote = is_remote(location)
        self._is_tidy = False
        self._is_made = False

    def at(self, name: str) -> str:
        """Return the location of a file in the directory."""
        return join(self.location, name)

    def names(self) -> list[str]:
        """Return the sorted file names; empty if the directory does not exist.

        Raises RawFormatError if it cannot be listed.
        """
        if not self.is_remote:
            here, names = local_path(self.location), []
            with (
                system_errors(RawFormatError, f"cannot list {here}", slug="cannot-read"),
                suppress(FileNotFoundError),
            ):
                names = [entry.name for entry in here.iterdir() if entry.is_file()]
            return sorted(name for name in names if not name.endswith(".partial"))
        with storage_errors(self.location, RawFormatError):
            system, path = _open(self.location)
            system.invalidate_cache(path)
            try:
                infos = system.find(path, maxdepth=1, detail=True)
            except FileNotFoundError as err:
                if "bucket" in str(err):
                    raise
                return []
            names = [PurePosixPath(name).name for name in infos]
            return sorted(name for name in names if not name.endswith(".partial"))

    def read(self, name: str) -> bytes:
        """Return the bytes of a file.

        Raises RawFormatError if it does not exist, or cannot be read.
        """
        with storage_errors(self.at(name), RawFormatError):
            if not self.is_remote:
                return local_path(self.at(name)).read_bytes()
            system, path = _open(self.at(name))
            data = system.cat_file(path)
            assert isinstance(data, bytes)
            return data

    def ends_with(self, name: str, end: bytes) -> bool:
        """Return True if a local file ends with `end`; remote files are always complete."""
        if self.is_remote:
            return True
        try:
            with local_path(self.at(name)).open("rb") as file:
                file.seek(-len(end), os.SEEK_END)
                return file.read() == end
        except OSError:
            return False

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, replacing an existing one; missing directories are created.

        If `durable`, wait until the file is on disk; not needed for files that can be recreated.

        Raises:
            OutputError: it cannot be written; an existing file is kept.
        """
        if not self.is_remote:
            target = local_path(self.at(name))
            if not self._is_made:
                with output_errors(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                self._is_made = True
            if self._is_tidy and not durable:
                write_small(target, data)
                return
            with replacing(target, overwrite=True, durable=durable) as partial:
                partial.write_bytes(data)
            return
        with storage_errors(self.at(name), OutputError):
            system, path = _open(self.at(name))
            protocol = system.protocol
            if _OBJECTS & {*((protocol,) if isinstance(protocol, str) else protocol)}:
                system.pipe_file(path, data)
                return
            partial_name = f"{path}.{hashlib.blake2b(data, digest_size=4).hexdigest()}.partial"
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            try:
                system.pipe_file(partial_name, data)
                system.mv(partial_name, path)
            except BaseException:
                if system.exists(partial_name):
                    system.rm_file(partial_name)
                raise

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with storage_errors(self.at(name), OutputError):
            if not self.is_remote:
                local_path(self.at(name)).unlink(missing_ok=True)
                return
            system, path = _open(self.at(name))
            if system.exists(path):
                system.rm_file(path)

    def tidy(self) -> None:
        """Remove temporary files of killed processes once, instead of on every `write`."""
        if not self.is_remote:
            remove_abandoned(local_path(self.location))
            self._is_tidy = True


def _recordings(
    url: str, path: str, infos: Mapping[str, Mapping[str, Any]], named: set[str]
) -> list[Remote]:
    """Group files by recording; files that cannot be recordings are omitted unless named.

    `url` is that of the directory, file or pattern, `path` the same as a path of the file system,
    which may lack the host. `infos` are properties by path, `named` the paths that the URL names.
    """
    head = url.rstrip("/").removesuffix(path.rstrip("/"))
    matches = (pattern.match(path) for path in infos for pattern in _DIRECTORIES)
    directories = {match["directory"] for match in matches if match is not None}
    recordings: dict[str, list[str]] = {}
    for path in sorted(infos):
        above = (str(directory) for directory in reversed(PurePosixPath(path).parents))
        if (
            directory := next((directory for directory in above if directory in directories), None)
        ) is not None:
            recordings.setdefault(directory, []).append(path)
        elif path in named or path.lower().endswith(_FILES):
            recordings[path] = [path]
    result = []
    for recording, paths in recordings.items():
        names = [path[len(recording) + 1 :] for path in paths]
        if any(map(_MADE_DATABASE.search, names)):  # the raw data is not needed
            names = [n for n in names if _MADE_DATABASE.search(n) or _FACTS_OF_RANK.search(n)]
        chosen = [infos[f"{recording}/{name}" if name else recording] for name in names]
        size = sum(int(info.get("size") or 0) for info in chosen)
        texts = [f"{name}\0{_stamp(info)}" for name, info in zip(names, chosen, strict=True)]
        stamp = hashlib.blake2b("\n".join(texts).encode(), digest_size=12).hexdigest()
        result.append(Remote(head + recording, size, stamp, tuple(names)))
    return result


def _stamp(info: Mapping[str, Any]) -> str:
    tag = info.get("ETag") or info.get("etag") or info.get("md5Hash") or info.get("checksum")
    if tag:
        return f"{tag}"
    when = next((info[key] for key in _TIME_KEYS if info.get(key)), "")
    return f"{info.get('size')} {when}"


def _files(system: Any, path: str) -> Sequence[str]:
    files = system.find(path)
    if files == [path] or (not files and system.info(path)):
        return ("",)
    return [name[len(path.rstrip("/")) + 1 :] for name in files]


def _open(url: str) -> tuple[Any, str]:
    """Return the file system for a URL and the path in it."""
    match = _URL.match(url)
    assert match is not None
    scheme = match["scheme"].lower()
    hint = "run `pip install 'unified-prof[cluster]'`"
    with missing_package(f"{url}: reading URLs needs fsspec", hint=hint):
        import fsspec
    settings = _SETTINGS.get("s3" if scheme == "s3a" else scheme, {})
    try:
        # The host and the user of a URL are arguments of some file systems, such as ftp.
        system, path = fsspec.core.url_to_fs(scheme + url[len(scheme) :], **settings)
    except ImportError as err:
        package = _PACKAGES.get(scheme)
        raise UsageError(
            f"{url}: reading {scheme}:// needs {package or err.name or 'another package'}",
            hint=f"run `pip install {package}`" if package else str(err),
            slug="missing-package",
        ) from err
    except ValueError as err:
        if "rotocol" not in str(err):
            raise
        raise UsageError(
            f"{url}: {scheme}:// is not supported",
            hint="supported: s3://, gs://, az:// and file://",
            slug="unknown-scheme",
        ) from None
    return system, path
