"""Compile the test device once per version of torch; parallel test processes wait for each other.

python -m tests.device.build
"""

import fcntl
import hashlib
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.processes import run

NATIVE = Path(__file__).with_name("native")
CACHE = Path(__file__).parents[2] / ".cache" / "bench"
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-w")
_LIBRARIES = ("-ltorch", "-ltorch_cpu", "-lc10", "-lpthread")


def why_not() -> str | None:
    """Return why the test device cannot be built here, or None."""
    if not sys.platform.startswith("linux"):
        return "the test device is for Linux"
    try:
        import torch
    except ImportError:
        return "the test device needs torch"
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13):
        return f"the test device needs the headers of torch 2.13, this is {torch.__version__}"
    if _compiler() is None:
        return "the test device needs a C++ compiler (apt-get install g++)"
    return None


def library() -> Path:
    """Return the compiled test device for this torch; an earlier build is reused."""
    import torch

    sources = sorted(NATIVE.glob("*.cpp"))
    known = hashlib.sha256(repr((_FLAGS, torch.__version__)).encode())
    for path in sorted(NATIVE.iterdir()):
        known.update(path.read_bytes())
    found = CACHE / f"torch-{torch.__version__}-{known.hexdigest()[:16]}" / "libbench.so"
    if found.is_file():
        return found
    found.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.is_file():  # unless another process has built it meanwhile
            _compile(sources, found)
    return found


def _compile(sources: list[Path], result: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    compiler = _compiler()
    assert compiler is not None
    folders = include_paths()
    folders += [f"{folder}/kineto" for folder in folders if folder.endswith("/torch/include")]
    included = [f"-I{folder}" for folder in folders]

    def compile_object(source: Path) -> Path:
        compiled = result.with_name(f"{source.stem}.o")
        _call([compiler, *_FLAGS, *included, "-c", str(source), "-o", str(compiled)])
        return compiled

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(compile_object, sources))
    unfinished = result.with_suffix(".partial")
    linked = [
        part for folder in library_paths() for part in (f"-L{folder}", f"-Wl,-rpath,{folder}")
    ]
    _call([compiler, "-shared", *map(str, objects), *linked, *_LIBRARIES, "-o", str(unfinished)])
    for compiled in objects:
        compiled.unlink()
    unfinished.replace(result)


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")


def _call(command: list[str]) -> None:
    done = run(*command)
    if done.returncode:
        raise RuntimeError(f"the test device cannot be compiled: {command}\n{done.stderr}")


if __name__ == "__main__":
    print(why_not() or library())
