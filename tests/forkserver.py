"""Starts Python commands as forks of processes that have imported what the commands import.

An import of torch takes 1.5 s of CPU time. After `install()`, `subprocess.Popen` turns a command
`python -m MODULE`, `-c CODE` or `SCRIPT` that imports torch or uprof into a fork with its
arguments, directory, environment and streams, which is a child of this process as any other.
Everything else, and each command of a test marked `fresh_interpreter`, is a new interpreter.
With `forks_of_commands`, also the Python commands of these commands are forks.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import fcntl
import gc
import importlib.util
import inspect
import io
import marshal
import multiprocessing.process
import os
import pickle
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, ClassVar

# Variables that the interpreter or a library reads only when it starts.
AT_START = ("PYTHON", "PYTORCH", "LC_", "LANG", "LD_", "MKL_", "OPENBLAS_", "TORCH_", "KINETO_")
SET_CHILD_SUBREAPER = 36  # of prctl
IMPORTED = {
    "torch": """torch.profiler torch.utils.data unified_prof.explain.api unified_prof.cli.run
        torch._dynamo unified_prof.backends.torch_device unified_prof.pipeline.live
        unified_prof.report.document unified_prof.report.terminal unified_prof.tracking.driver
        unified_prof.tracking.timeline""",
    "unified_prof": """alembic.command pytest unified_prof.baselines.store unified_prof.cli.gate
        unified_prof.cli.convert unified_prof.explain.api unified_prof.report.document""",
}
FORKED: dict[str, Any] = {"executable": None, "preexec_fn": None, "gid": None, "gids": None}
FORKED |= {"uid": None, "umask": -1, "close_fds": True, "shell": False, "restore_signals": True}
MAX_DESCRIPTORS = 16
FIRST_DESCRIPTOR = 200  # of a server; commands are given smaller numbers


def at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a fork cannot change."""
    kept = {name: value for name, value in environment.items() if name.startswith(AT_START)}
    for name in ("OPENBLAS_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        kept.pop(name, None)  # set by uprof and torchrun for what they start
    path = dict.fromkeys(kept.get("PYTHONPATH", "").split(os.pathsep))  # workers repeat folders
    return kept | {"PYTHONPATH": os.pathsep.join(path)}


def imported(arguments: list[str], folder: str) -> str | None:
    """Return which of IMPORTED a script or the code among the arguments of a command imports."""
    text = ""
    for one in arguments:
        script = Path(folder, one) if one.endswith(".py") else None
        text += "\n" + (script.read_text(errors="replace") if script and script.is_file() else one)
    if re.search(r"\b(import|from) .*\btorch\b", text):
        return "torch"
    return "unified_prof" if "unified_prof" in text else None


def request_of(
    given: dict[str, Any], known: dict[str, str], *, nested: bool = False
) -> dict[str, Any] | None:
    """Return what a fork needs to know of a command, or None for a new interpreter."""
    environment = dict(os.environ if given["env"] is None else given["env"])
    words, folder = given["args"], str(Path.cwd() / (given["cwd"] or ""))
    words = [os.fsdecode(each) for each in words] if isinstance(words, (list, tuple)) else [words]
    if nested and words[1:2] == ["-u"]:  # workers of pytest-xdist, which use descriptors
        del words[1]
    if any(given[name] != value for name, value in FORKED.items()) or len(words) < 2:
        return None
    if words[0] != sys.executable:
        return None
    if not all(isinstance(each, str) for each in (*words, *environment, *environment.values())):
        return None
    ignored = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    if signal.SIG_IGN in ignored or signal.pthread_sigmask(signal.SIG_BLOCK, []):
        return None
    if len(words) < 3 if words[1] in ("-m", "-c") else not Path(folder, words[1]).is_file():
        return None
    kind = "torch" if nested else imported(words[1:], folder)
    if kind is None or at_start(environment) != known:
        return None
    group = (given["start_new_session"], given.get("process_group"))
    return {"words": words, "environment": environment, "folder": folder, "group": group} | {
        "kind": kind, "descriptors": list(given["pass_fds"]), "nested": nested
    }  # fmt: skip


real: Any = subprocess.Popen


class Popen(real):  # type: ignore[misc]
    """A process, which the server forks if possible."""

    enabled = True
    nested = False
    servers: ClassVar[dict[str, tuple[socket.socket, Any]]] = {}
    lock = threading.Lock()
    signature = inspect.signature(real._execute_child)
    environment: ClassVar[dict[str, str]] = {}

    def _execute_child(self, *arguments: Any) -> None:
        given = self.signature.bind(self, *arguments).arguments
        known = at_start(self.environment)
        request = request_of(given, known, nested=self.nested) if self.enabled else None
        if request is None:
            super()._execute_child(*arguments)
            return
        ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [i if end == -1 else end for i, end in enumerate(ends)]
        with self.lock:
            self.pid = self.fork(request, streams + request["descriptors"])
        if not self.pid:  # the server has ended
            super()._execute_child(*arguments)
            return
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in names))

    @classmethod
    def fork(cls, request: dict[str, Any], streams: list[int]) -> int:
        kind = request["kind"]
        if kind not in cls.servers:
            channel, other = socket.socketpair()
            with other:
                file = other.fileno()
                command = [sys.executable, __file__, str(file), kind]
                process = real(command, pass_fds=[file], stdin=-3, env=cls.environment)
            cls.servers[kind] = (channel, process)
        channel = cls.servers[kind][0]
        data = pickle.dumps(request)
        prctl = ctypes.CDLL(None).prctl
        prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # when the parent of the fork ends, this replaces it
        try:
            socket.send_fds(channel, [len(data).to_bytes(8, "big")], streams)
            channel.sendall(data)
            return int.from_bytes(channel.recv(8), "big")
        except OSError:
            return 0
        finally:
            prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def install() -> None:
    """Let forks run commands that import torch, where that is possible."""
    if sys.platform == "linux" and importlib.util.find_spec("torch") is not None:
        Popen.environment = dict(os.environ)
        subprocess.Popen = Popen  # type: ignore[misc]


INTERPRETER = """\
#!{python} -IS
import marshal, os, socket, sys
with socket.socket(socket.AF_UNIX) as channel:
    channel.connect({address!r})
    data = marshal.dumps((sys.argv[1:], os.getcwd(), dict(os.environ)))
    socket.send_fds(channel, [len(data).to_bytes(8, "big")], [0, 1, 2])
    channel.sendall(data)
    code = int.from_bytes(channel.recv(8), "big", signed=True)
sys.exit(code if code >= 0 else 128 - code)
"""


@contextmanager
def interpreter(folder: Path) -> Iterator[str]:
    """Yield a program for shells that runs Python commands as forks, and passes no signals on."""
    if subprocess.Popen is not Popen:
        yield sys.executable
        return

    def answer(channel: socket.socket) -> None:
        with channel:
            streams: list[int] = []
            words, directory, environment = marshal.loads(receive(channel, streams))
            done = subprocess.run(
                [sys.executable, *words], cwd=directory, env=environment, check=False,
                stdin=streams[0], stdout=streams[1], stderr=streams[2],
            )  # fmt: skip
            for each in streams:
                os.close(each)
            channel.sendall(done.returncode.to_bytes(8, "big", signed=True))

    def listen() -> None:
        with suppress(OSError):  # closed
            while True:
                threading.Thread(target=answer, args=listening.accept()[:1]).start()

    program = folder / "python-of-forks"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")  # The system chooses an abstract address.
        listening.listen()
        address = listening.getsockname()
        program.write_text(INTERPRETER.format(python=sys.executable, address=address))
        program.chmod(0o755)
        threading.Thread(target=listen, daemon=True).start()
        yield str(program)
        listening.shutdown(socket.SHUT_RDWR)


def receive(channel: socket.socket, streams: list[int]) -> bytes:
    """Return the data of a request, and append its streams; without data if the sender ended."""
    size, received, _, _ = socket.recv_fds(channel, 8, MAX_DESCRIPTORS)
    streams += received
    with channel.makefile("rb") as file:
        return file.read(int.from_bytes(size, "big"))


def remove_variables() -> None:
    """Remove variables that a library has set and a fork cannot have: dask leaves some."""
    for name in [one for one in os.environ if one.startswith(AT_START)]:
        if name not in Popen.environment:
            del os.environ[name]


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request, and return it in the fork."""
    while True:
        streams: list[int] = []
        if not (data := receive(channel, streams)):
            os._exit(0)
        request = pickle.loads(data)
        if not (parent := os.fork()):
            parent = os.getpid()
            if not os.fork():
                while os.getppid() == parent:
                    time.sleep(0.0005)
                channel.sendall(os.getpid().to_bytes(8, "big"))
                channel.close()
                return request, streams
            os._exit(0)
        os.waitpid(parent, 0)
        for each in streams:
            os.close(each)


def nest(request: dict[str, Any], streams: list[int]) -> tuple[dict[str, Any], list[int]]:
    """Fork a server for the commands of this command, with the state before it."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        channel = socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR))
        ours.close()
        Popen.servers = dict.fromkeys(IMPORTED, (channel, None))
        Popen.nested = True
        install()
        return request, streams
    ours.close()
    null = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2, *streams):
        os.dup2(null, each)
    return serve(theirs)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Give this process the state of a new one."""
    received = [fcntl.fcntl(each, fcntl.F_DUPFD, FIRST_DESCRIPTOR) for each in streams]
    for each in streams:
        os.close(each)
    for number, each in zip((0, 1, 2, *request["descriptors"]), received, strict=True):
        os.dup2(each, number)
        os.close(each)
    session, group = request["group"]
    if session:
        os.setsid()
    if group is not None and group >= 0:
        os.setpgid(0, group)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        size = 0 if number and old.write_through else -1
        file: Any = open(number, f"{old.mode}b", size, closefd=False)  # noqa: SIM115
        new: Any = io.TextIOWrapper(file, encoding=old.encoding, errors=old.errors)
        getattr(file, "raw", file).name = old.name
        lines = old.line_buffering if number == 2 else new.isatty()
        new.reconfigure(line_buffering=lines, write_through=old.write_through)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    if "torch" in sys.modules and (threads := os.environ.get("OMP_NUM_THREADS", "")).isdigit():
        sys.modules["torch"].set_num_threads(int(threads))
    vars(multiprocessing.process)["ORIGINAL_DIR"] = str(Path.cwd())


def run(words: list[str]) -> None:
    """Run a command as the interpreter does."""
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    sys.orig_argv = words
    first, rest = words[1], words[2:]
    sys.argv = [first, *(rest[1:] if first in ("-m", "-c") else rest)]
    sys.path[0] = {"-m": str(Path.cwd()), "-c": ""}.get(first, str(Path(first).resolve().parent))
    if first == "-m":
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif first == "-c":
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        path = str(Path(first).absolute())
        main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
        exec(compile(Path(first).read_bytes(), path, "exec"), main.__dict__)


def leave(code: Any) -> None:
    """End as the interpreter does, but keep imported modules: to remove them takes 0.2 s."""
    if isinstance(code, (int, type(None))):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        vars(sys.modules["__main__"]).clear()
        gc.collect()
        with suppress(Exception):  # the interpreter reports why a stream cannot be written
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit((code or 0) & 255)
    sys.exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the whole process group
    for module in IMPORTED[sys.argv[2]].split():
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    job = serve(socket.socket(fileno=int(sys.argv[1])))
    while job[0]["nested"] and Popen.servers == {}:
        job = nest(*job)
    become(*job)
    code: Any = None
    try:
        run(job[0]["words"])
    except SystemExit as error:
        code = error.code
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    leave(code)
