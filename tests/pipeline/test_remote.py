"""Remote storage: a local S3 server, and failing file systems in memory."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.processes import run
from unified_prof.errors import OutputError, RawFormatError, UprofError, UsageError
from unified_prof.pipeline import remote
from unified_prof.pipeline.remote import Remote, StorageDirectory, fetch, find

fsspec = pytest.importorskip("fsspec")

FILES = {
    "in/PROF_1/host/data/a.bin": b"raw",
    "in/PROF_1/host/info.json": b"{}",
    "in/rank1.json.gz": b"trace",
    "in/readme.txt": b"read me",
    "in/h_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db": b"database",
    "in/h_ascend_pt/PROF_2/device_0/data/big": b"large",
    "in/h_ascend_pt/profiler_info_0.json": b"{}",
}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Start an S3 server with an empty bucket, configured by environment variables."""
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        # Servers of one process share their content, so each test module uses another bucket.
        system.mkdir(f"bucket-{port}")
        yield f"s3://bucket-{port}"
    type(system).clear_instance_cache()
    server.stop()


@pytest.fixture
def memory() -> Iterator[str]:
    yield "memory://bucket"
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(params=["s3", "memory"])
def bucket(request: pytest.FixtureRequest) -> str:
    place: str = request.getfixturevalue(request.param)
    for name, data in FILES.items():
        StorageDirectory(place).write(name, data)
    return place


def files_below(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


@pytest.mark.slow
def test_recordings_of_a_remote_directory_are_found_and_fetched(bucket: str) -> None:
    recordings = {recording.name: recording for recording in find(f"{bucket}/in")}
    assert set(recordings) == {"PROF_1", "h_ascend_pt", "rank1.json.gz"}
    assert recordings["h_ascend_pt"].size_bytes == len(b"database{}"), "without the raw data"
    with fetch(recordings["PROF_1"]) as path:
        assert path.name == "PROF_1"
        assert files_below(path) == {"host/data/a.bin": b"raw", "host/info.json": b"{}"}
    assert not path.exists()
    with fetch(recordings["h_ascend_pt"]) as path:
        assert set(files_below(path)) == {
            "ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db",
            "profiler_info_0.json",
        }
    with fetch(f"{bucket}/in/rank1.json.gz") as path:
        assert (path.name, path.read_bytes()) == ("rank1.json.gz", b"trace")
    with fetch(f"{bucket}/in/PROF_1") as path:
        assert len(files_below(path)) == 2


@pytest.mark.slow
def test_patterns_and_single_files_are_found(bucket: str) -> None:
    assert [r.name for r in find(f"{bucket}/in/*.json.gz")] == ["rank1.json.gz"]
    assert [r.name for r in find(f"{bucket}/*/PROF_*")] == ["PROF_1"]
    assert [r.name for r in find(f"{bucket}/in/PROF_1")] == ["PROF_1"]
    assert [r.name for r in find(f"{bucket}/in/readme.txt")] == ["readme.txt"], "explicitly named"
    (only,) = find(f"{bucket}/in/rank1.json.gz")
    assert only.url.endswith("in/rank1.json.gz")


@pytest.mark.slow
def test_stamp_changes_with_the_content(s3: str) -> None:
    folder = StorageDirectory(f"{s3}/stamps/PROF_3/host")
    folder.write("a", b"1")
    (before,) = find(f"{s3}/stamps")
    folder.write("a", b"1")
    assert find(f"{s3}/stamps") == [before]
    folder.write("a", b"2")
    assert find(f"{s3}/stamps")[0].stamp != before.stamp


@pytest.mark.parametrize("place", ["s3", "memory", "path", "file"])
def test_storage_directory_lists_reads_and_removes_files(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    location = {"path": str(tmp_path), "file": tmp_path.as_uri()}.get(place)
    folder = StorageDirectory(f"{location or request.getfixturevalue(place)}/run.cluster/partials")
    assert folder.names() == []
    folder.write("b.parquet", b"2")
    folder.write("a.parquet", b"1")
    folder.write("a.parquet", b"one")
    StorageDirectory(folder.at("below")).write("c", b"3")
    assert folder.names() == ["a.parquet", "b.parquet"]
    assert folder.read("a.parquet") == b"one"
    folder.remove("a.parquet")
    folder.remove("a.parquet")
    assert folder.names() == ["b.parquet"]
    with pytest.raises(RawFormatError, match=r"partials/a\.parquet: no such file"):
        folder.read("a.parquet")
    folder.tidy()


def test_local_files_are_not_copied(tmp_path: Path) -> None:
    file = tmp_path / "a b.db"
    file.write_bytes(b"1")
    for location in (str(file), file.as_uri()):
        assert not remote.is_remote(location)
        with fetch(location) as path:
            assert path == file
    assert remote.is_remote("s3://bucket/x")
    assert not remote.is_remote("C:/x")


def test_missing_buckets_and_files_are_errors(s3: str) -> None:
    messages = {
        "s3://nobucket/x": "s3://nobucket/x: no such bucket",
        f"{s3}/none": f"{s3}/none: no such file",
        f"{s3}/none/*.db": f"{s3}/none/*.db: no such file",
    }
    for url, words in messages.items():
        with pytest.raises(RawFormatError) as raised:
            find(url)
        assert str(raised.value) == words
    StorageDirectory(f"{s3}/odd").write("notes.txt", b"x")
    with pytest.raises(RawFormatError, match="contains no recording"):
        find(f"{s3}/odd")
    with pytest.raises(OutputError, match="no such bucket"):
        StorageDirectory("s3://nobucket/x").write("a", b"1")


@pytest.mark.slow
def test_missing_credentials_and_unresponsive_service_are_errors(
    s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system = type(fsspec.filesystem("s3"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    system.clear_instance_cache()
    with pytest.raises(UprofError, match=r"credentials|denied") as raised:
        StorageDirectory(s3).write("a", b"1")
    assert "AWS_ACCESS_KEY_ID" in str(raised.value.hint)
    monkeypatch.undo()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    system.clear_instance_cache()
    with pytest.raises(RawFormatError, match="the service does not respond"):
        find(f"{s3}/x")
    system.clear_instance_cache()


class FailingFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc, name-defined]
    """A file system that raises, and whose files are not written atomically."""

    protocol = "failing"
    raises: Exception | None = None
    files: dict[str, bytes] = {}  # noqa: RUF012 (shared by all instances, as in a service)
    moved: list[str] = []  # noqa: RUF012

    def find(self, path: str, maxdepth: Any = None, withdirs: bool = False, **kw: Any) -> Any:
        if self.raises:
            raise self.raises
        names = [name for name in self.files if name.startswith(path)]
        infos = {name: {"name": name, "size": len(self.files[name])} for name in names}
        return infos if kw.get("detail") else names

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self.files[path] = value[:1]
        if self.raises:
            raise self.raises
        self.files[path] = value

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        Path(lpath).write_bytes(self.files[rpath])

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        self.moved.append(path2)
        self.files[path2] = self.files.pop(path1)

    def exists(self, path: str, **_: Any) -> bool:
        return path in self.files

    def rm_file(self, path: str) -> None:
        del self.files[path]


@pytest.fixture
def failing() -> type[FailingFileSystem]:
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    FailingFileSystem.files, FailingFileSystem.moved, FailingFileSystem.raises = {}, [], None
    FailingFileSystem.clear_instance_cache()
    return FailingFileSystem


def test_errors_of_file_systems_are_described(failing: type[FailingFileSystem]) -> None:
    messages = {
        PermissionError("Forbidden"): "access denied",
        FileNotFoundError("The specified bucket does not exist"): "no such bucket",
        TimeoutError(): "the service does not respond",
        OSError(28, "No space left on device"): "no space left for a copy",
        OSError(5, "Input/output error"): "Input/output error",
        ValueError("odd"): "ValueError: odd",
    }
    for error, words in messages.items():
        failing.raises = error
        with pytest.raises(RawFormatError, match=f"(?m)failing://x/y: {words}$"):
            find("failing://x/y")


def test_files_are_renamed_when_complete_or_removed(failing: type[FailingFileSystem]) -> None:
    folder = StorageDirectory("failing://x")
    folder.write("a", b"complete")
    (moved,) = failing.moved
    assert failing.files == {moved: b"complete"}
    failing.raises = OSError(28, "No space left on device")
    with pytest.raises(OutputError):
        folder.write("a", b"other")
    assert failing.files == {moved: b"complete"}


def test_unsafe_file_names_are_refused(failing: type[FailingFileSystem], tmp_path: Path) -> None:
    failing.files = {"x/PROF_1/host/../../../evil": b"1"}
    with (
        pytest.raises(RawFormatError, match="unsafe file name"),
        fetch(Remote("failing://x/PROF_1", 1, "", ("host/../../../evil",))),
    ):
        pass


def test_unsupported_schemes_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="foo:// is not supported") as raised:
        find("foo://x/y")
    assert raised.value.exit_code == 2
    if not _installed("gcsfs"):
        with pytest.raises(UsageError, match="reading gs:// needs gcsfs") as raised:
            find("gs://x/y")
        assert raised.value.hint == "run `pip install gcsfs`"


def test_missing_fsspec_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(UsageError, match="reading URLs needs fsspec") as raised:
        find("s3://x/y")
    assert raised.value.hint == "run `pip install 'unified-prof[cluster]'`"


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


@pytest.mark.slow
def test_error_of_an_ftp_server_is_the_only_output() -> None:
    words = [sys.executable, "-m", "unified_prof", "cluster", "report", "ftp://127.0.0.1:1/run"]
    done = run(*words)
    assert done.returncode == 6
    assert done.stderr == (
        "uprof: error: ftp://127.0.0.1:1/run: the service does not respond [uprof:remote-storage]\n"
    )


def test_recordings_keep_the_host_of_their_url(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/runs/rank0.db": {"size": 1}, "/runs/more/rank1.db": {"size": 2}}
    system = SimpleNamespace(find=lambda path, detail: files)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (system, "/runs"))
    urls = [one.url for one in remote.find("ftp://user@storage/runs/")]
    assert urls == ["ftp://user@storage/runs/more/rank1.db", "ftp://user@storage/runs/rank0.db"]
