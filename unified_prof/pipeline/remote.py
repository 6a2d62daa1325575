"""What file systems elsewhere complain of, in words of ours.

Recordings and partials that lie elsewhere: S3 and whatever else fsspec opens, by URL.

A local path stays what it is, with nothing copied. Where credentials and endpoints come from is
the business of the packages that fsspec uses: of the environment and files of their service
(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `~/.aws`, ...), and of fsspec's own (`FSSPEC_S3_...`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from unified_prof.errors import OutputError, RawFormatError, UprofError, UsageError
from unified_prof.sqlite.atomic import (
    output_error,
    remove_abandoned,
    replacing,
    temporary_folder,
    write_small,
)

_CREDENTIALS = (
    "set credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
    "AWS_PROFILE, AWS_ENDPOINT_URL) or in the files of the service's own tools"
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
        return "credentials missing", _CREDENTIALS
    if "FileNotFoundError" in kinds:
        if "bucket does not exist" in text.lower() or "nosuchbucket" in text.lower():
            return "no such bucket", None
        return "no such file", None
    if "PermissionError" in kinds:
        return "access denied", _CREDENTIALS
    if kinds & _SILENT:
        return "the service does not respond", (
            "set AWS_ENDPOINT_URL for a service other than Amazon's"
        )
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

_FOLDERS = (
    re.compile(
        r"(?P<folder>(?:.*?/)??[^/]*_ascend_pt)/(?:PROF_|ASCEND_PROFILER_OUTPUT/|FRAMEWORK/)"
    ),
    re.compile(r"(?P<folder>(?:.*?/)??PROF_[^/]*)/(?:host|device_\d+)/"),
)
"""Recordings that are folders, as their files' names show; they are fetched as a whole."""
_FILES = (".db", ".sqlite", ".sqlite3", ".json", ".json.gz", ".parquet")
"""What files below a folder may be recordings."""
_FACTS_OF_RANK = re.compile(r"(?:\A|/)(?:profiler_(?:info|metadata)[^/]*\.json)\Z")
_MADE_DATABASE = re.compile(r"(?:\A|/)ASCEND_PROFILER_OUTPUT/[^/]*\.db\Z")

_OBJECTS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"}
"""Where an object appears whole or not at all; elsewhere a file is written and then renamed."""

_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 10,
            "read_timeout": 60,
            "retries": {"max_attempts": 3, "mode": "standard"},
        }
    }
}
"""What we ask of a file system besides: an end to waiting for a service that does not answer."""

_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
}


@dataclass(frozen=True, slots=True)
class Remote:
    """A recording, or another file, that lies elsewhere."""

    url: str
    size_bytes: int
    stamp: str
    """Changes when the contents do: of ETags where there are such, else sizes and times."""
    files: tuple[str, ...]
    """All files of it, relative to `url`; only "" where it is a file itself."""

    @property
    def name(self) -> str:
        """The last part of its URL."""
        return PurePosixPath(self.url).name


def is_remote(location: str) -> bool:
    """Tell a URL that does not name a file of this machine."""
    match = _URL.match(location)
    return match is not None and match["scheme"].lower() not in ("file", "local")


def local_path(location: str) -> Path:
    """Return the path that a location of this machine names; `file://` URLs name some."""
    if _URL.match(location):
        parts = urlsplit(location)
        return Path(unquote(parts.netloc + parts.path))
    return Path(location)


def joined(location: str, name: str) -> str:
    """Return the location of `name` in a folder."""
    return f"{location.rstrip('/')}/{name}"


def found(url: str) -> list[Remote]:
    """Return what a URL names: itself, or what may be recordings below a folder or in a pattern.

    Raises:
        RawFormatError: there is nothing, or it cannot be asked.
        UsageError: nothing here opens such a URL.
    """
    with in_words(url, RawFormatError):
        system, path = _opened(url)
        if _MAGIC.search(path):
            matches = sorted(system.glob(path))
            if not matches:
                raise RawFormatError(
                    f"{url}: no such file", hint="the pattern matches nothing", slug="no-such-file"
                )
        else:
            matches = [path]
        infos: dict[str, Mapping[str, Any]] = {}
        asked: list[str] = []
        for match in matches:
            below = system.find(match, detail=True)
            infos.update(below)
            if list(below) == [match]:
                asked.append(match)
        if not infos:
            system.info(path)  # says what is wrong: no bucket, no right to look into it
            raise RawFormatError(f"{url} is empty", slug="empty-file")
        result = _recordings(system, infos, set(asked))
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
def fetched(location: str | Remote) -> Iterator[Path]:
    """Yield the local path of something: of a remote file or folder a copy, while the block runs.

    Raises:
        RawFormatError: it is not there, or cannot be read.
        OutputError: there is no room for the copy.
    """
    if isinstance(location, str) and not is_remote(location):
        yield local_path(location)
        return
    url = location if isinstance(location, str) else location.url
    with ExitStack() as resources:
        try:
            folder = resources.enter_context(temporary_folder())
        except OSError as err:
            raise OutputError(
                f"cannot create a temporary directory: {err.strerror or err}",
                slug="no-temporary-space",
            ) from err
        with in_words(url, RawFormatError):
            system, path = _opened(url)
            files = location.files if isinstance(location, Remote) else _files(system, path)
            target = folder / PurePosixPath(path.rstrip("/")).name
            for name in files:
                if ".." in PurePosixPath(name).parts:  # a key may hold what no path should
                    raise RawFormatError(
                        f"{joined(url, name)}: unsafe file name", slug="unsafe-name"
                    )
                into = target / name if name else target
                into.parent.mkdir(parents=True, exist_ok=True)
                system.get_file(f"{path.rstrip('/')}/{name}" if name else path, str(into))
        yield target


class Folder:
    """A folder of finished files, here or elsewhere; each appears whole or not at all."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.is_remote = is_remote(location)
        self._is_tidy = False
        self._is_made = False

    def at(self, name: str) -> str:
        """Return the location of a file in it."""
        return joined(self.location, name)

    def names(self) -> list[str]:
        """Return the names of the files in it, sorted; none if there is no such folder.

        Raises:
            RawFormatError: it cannot be listed.
        """
        if not self.is_remote:
            here = local_path(self.location)
            try:
                names = [entry.name for entry in here.iterdir() if entry.is_file()]
            except FileNotFoundError:
                return []
            except OSError as err:
                raise RawFormatError(
                    f"cannot list {here}: {err.strerror}", slug="cannot-read"
                ) from err
            return sorted(name for name in names if not _is_partial(name))
        with in_words(self.location, RawFormatError):
            system, path = _opened(self.location)
            system.invalidate_cache(path)
            try:
                infos = system.find(path, maxdepth=1, detail=True)
            except FileNotFoundError as err:
                if "bucket" in str(err):
                    raise
                return []
            return sorted(
                PurePosixPath(name).name
                for name in infos
                if not _is_partial(PurePosixPath(name).name)
            )

    def read(self, name: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            RawFormatError: it is not there, or cannot be read.
        """
        with in_words(self.at(name), RawFormatError):
            if not self.is_remote:
                return local_path(self.at(name)).read_bytes()
            system, path = _opened(self.at(name))
            data = system.cat_file(path)
            assert isinstance(data, bytes)
            return data

    def ends_with(self, name: str, end: bytes) -> bool:
        """Tell whether the file is whole as far as its end says; elsewhere there are only such."""
        if self.is_remote:
            return True
        try:
            with local_path(self.at(name)).open("rb") as file:
                file.seek(-len(end), os.SEEK_END)
                return file.read() == end
        except OSError:
            return False

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, in place of one that is there; folders that lack are made.

        Args:
            name: Its name.
            data: All of it.
            durable: Wait until the disk has it; not needed for what can be made again.

        Raises:
            OutputError: it cannot be written; what was there before is still there.
        """
        if not self.is_remote:
            target = local_path(self.at(name))
            try:
                if not self._is_made:
                    target.parent.mkdir(parents=True, exist_ok=True)
                self._is_made = True
            except OSError as err:
                raise output_error(target, err) from err
            if self._is_tidy and not durable:
                write_small(target, data)
                return
            with replacing(target, overwrite=True, durable=durable) as partial:
                partial.write_bytes(data)
            return
        with in_words(self.at(name), OutputError):
            system, path = _opened(self.at(name))
            if system.protocol in _OBJECTS or _OBJECTS & set(_tuple(system.protocol)):
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
        """Remove a file, if it is there."""
        with in_words(self.at(name), OutputError):
            if not self.is_remote:
                local_path(self.at(name)).unlink(missing_ok=True)
                return
            system, path = _opened(self.at(name))
            if system.exists(path):
                system.rm_file(path)

    def tidy(self) -> None:
        """Remove what processes that were killed have left here; writing then looks no more."""
        if not self.is_remote:
            remove_abandoned(local_path(self.location))
            self._is_tidy = True


def _recordings(
    system: Any, infos: Mapping[str, Mapping[str, Any]], asked: set[str]
) -> list[Remote]:
    """Put files together that are one recording; those that can be none are left out."""
    matches = (pattern.match(path) for path in infos for pattern in _FOLDERS)
    folders = {match["folder"] for match in matches if match is not None}
    wholes: dict[str, list[str]] = {}
    for path in sorted(infos):
        above = (str(folder) for folder in reversed(PurePosixPath(path).parents))
        if (folder := next((folder for folder in above if folder in folders), None)) is not None:
            wholes.setdefault(folder, []).append(path)
        elif path in asked or path.lower().endswith(_FILES):
            wholes[path] = [path]
    result = []
    for whole, paths in wholes.items():
        names = [path[len(whole) + 1 :] for path in paths]
        if any(map(_MADE_DATABASE.search, names)):  # of gigabytes of raw data a database was made
            names = [n for n in names if _MADE_DATABASE.search(n) or _FACTS_OF_RANK.search(n)]
        chosen = [infos[f"{whole}/{name}" if name else whole] for name in names]
        size = sum(int(info.get("size") or 0) for info in chosen)
        texts = [f"{name}\0{_stamp(info)}" for name, info in zip(names, chosen, strict=True)]
        stamp = hashlib.blake2b("\n".join(texts).encode(), digest_size=12).hexdigest()
        result.append(Remote(system.unstrip_protocol(whole), size, stamp, tuple(names)))
    return result


def _stamp(info: Mapping[str, Any]) -> str:
    tag = info.get("ETag") or info.get("etag") or info.get("md5Hash") or info.get("checksum")
    if tag:
        return f"{tag}"
    when = next(
        (
            info[key]
            for key in ("mtime", "LastModified", "last_modified", "created")
            if info.get(key)
        ),
        "",
    )
    return f"{info.get('size')} {when}"


def _files(system: Any, path: str) -> Sequence[str]:
    files = system.find(path)
    if files == [path] or (not files and system.info(path)):
        return ("",)
    return [name[len(path.rstrip("/")) + 1 :] for name in files]


def _is_partial(name: str) -> bool:
    return name.endswith(".partial")


def _tuple(protocol: str | Sequence[str]) -> Sequence[str]:
    return (protocol,) if isinstance(protocol, str) else protocol


def _opened(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    match = _URL.match(url)
    assert match is not None
    scheme = match["scheme"].lower()
    try:
        import fsspec
    except ImportError as err:
        raise UsageError(
            f"{url}: reading URLs needs fsspec",
            hint="run `pip install 'unified-prof[cluster]'`",
            slug="missing-package",
        ) from err
    settings = _SETTINGS.get("s3" if scheme == "s3a" else scheme, {})
    try:
        system = fsspec.filesystem(scheme, **settings)
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
    return system, system._strip_protocol(url)
