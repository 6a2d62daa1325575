"""Replaces names, paths and texts consistently, so that recordings can be shared.

Words of public software (operators, kernels, API calls, keys of formats: `public_words.txt`),
numbers and punctuation are kept, and paths within public packages. Other words, and other
components of paths, become `w1`, `w2`, and so on: equal words get equal names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from sys import stdlib_module_names
from typing import Any

# Values of such keys name a machine or a person, or are secret; no word of them is kept.
_PERSONAL = re.compile(
    r"(?i)host(?!_(?:duration|time))|user_?name|\buser$|login|machine|node_?name|account|e-?mail"
    r"|\bu?uid|hostuid|mac_?addr|\bip(?:_?addr|$)|cwd|\bpwd$"
    r"|token$|secret|passw|credential|api_?key"
)
_PERSONAL_SETTING = re.compile(
    r"(?i)\b(\w*(?:host|user|logname|login|pwd|home|mail|token|secret|key)\w*)=(\S+)"
)
_KNOWN_ENDINGS = frozenset(
    "py pyx pyc ipynb c cc cpp cu cuh h hpp hip so o a json pt pth pkl pickle db sqlite txt csv log"
    " yaml yml toml cfg ini sh gz xz bz2 zip zst whl om bin safetensors onnx parquet trace".split()
)
_PACKAGES = frozenset(
    "torch torch_npu torchvision torchaudio torchgen triton functorch numpy vllm vllm_ascend sglang"
    " transformers accelerate deepspeed megatron lightning pytorch_lightning apex flash_attn"
    " xformers transformer_engine mindspeed mindspore unified_prof".split()
)
# Directories of every installation.
_PLACES = frozenset(
    ("", ".", "..", "usr", "lib", "lib64", "bin", "opt", "tmp", "var", "proc", "dev", "home")
)
_PYTHON = re.compile(r"python\d[\d.]*")
_INSTALLED = ("site-packages", "dist-packages")
_IN_PATH = r"[^\s\"'()<>\[\]{},;=:|/\\#]"
# Words, each with its digits; `w12` is one, so that different words get different names.
_WORD_PATTERN = r"0x[0-9a-f]+\b|[^\W_]*(?=[^\x00-\x7f])\w[^\W_]*|[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*"
_WORD = re.compile(_WORD_PATTERN)
_TOKEN = re.compile(
    rf"(?P<path>(?:\b[A-Za-z]:)?{_IN_PATH}*(?:[/\\]+{_IN_PATH}+)+[/\\]?"
    rf"|{_IN_PATH}+\.(?:py|pyx|ipynb|cpp|cc|cu|cuh|hpp|h|so|json|pt|pkl|db|ya?ml|sh)\b)"
    r"(?P<function>\(\d+\): [\w<>.]+)?"
    # Addresses, and ids in hexadecimal.
    r"|(?P<id>\b\d{1,3}(?:\.\d{1,3}){3}\b|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{12,}\b"
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b)"
    rf"|(?P<word>{_WORD_PATTERN})"
)
# Start or end of a path in a file system.
_LOCATION = re.compile(r"[/\\~.]|[A-Za-z]:|.*\.\w+$")
_ALPHANUMERIC = re.compile(r"[^\W_]+")
_OWN = re.compile(r"w\d+")
_NUMBER = re.compile(r"0x[0-9a-f]+")
_NOT_AVAILABLE = re.compile(r"[A-Z]/[A-Z]")
_SHORT = 2  # Letters of a word that is kept anywhere: types, sizes and operands of kernels.
_MAX_KNOWN = 1 << 20  # Texts whose result is remembered.


@cache
def _public_words() -> frozenset[str]:
    words = Path(__file__).with_name("public_words.txt").read_text(encoding="utf-8")
    return frozenset(words.split())


@lru_cache(maxsize=1 << 12)
def _is_personal(key: str) -> bool:
    return _PERSONAL.search(key) is not None


class Anonymizer:
    """Replaces texts of one output; equal words get equal names."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """Word or component of a path -> its replacement."""
        self._known: dict[tuple[str, bool], str] = {}
        self._literals: dict[tuple[bytes, bool], bytes] = {}
        self._public = _public_words()

    def text(self, text: str, key: str = "") -> str:
        """Return a text with replaced words.

        `key` is the key or column of the text; values of keys such as `hostname` keep no word.
        """
        is_personal = bool(key) and _is_personal(key)
        if (known := self._known.get((text, is_personal))) is None:
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
            known = self._known[text, is_personal] = (
                self._all(text) if is_personal else self._replaced(text)
            )
        return known

    def value(self, value: Any, key: str = "") -> Any:
        """Return plain data with replaced texts, keys included."""
        if isinstance(value, str):
            return self.text(value, key)
        if isinstance(value, Mapping):
            return {
                self.text(name) if isinstance(name, str) else name: self.value(
                    one, name if isinstance(name, str) else key
                )
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return type(value)(self.value(one, key) for one in value)
        return self.data(value) if isinstance(value, bytes) else value

    def data(self, value: bytes, key: str = "") -> bytes:
        """Return bytes with replaced texts, if they are a text, else unchanged."""
        if b"\0" in value.rstrip(b"\0"):
            return value
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return value
        return self.text(text, key).encode()

    def literal(self, literal: bytes, key: str = "") -> bytes:
        """Return a JSON string, with its quotes, with replaced words."""
        is_personal = bool(key) and _is_personal(key)
        if (known := self._literals.get((literal, is_personal))) is not None:
            return known
        try:
            text = json.loads(literal, strict=False)
        except ValueError:
            text = literal[1:-1].decode("utf-8", "replace")
        if len(self._literals) > _MAX_KNOWN:
            self._literals.clear()
        result = json.dumps(self.text(text, key)).encode()
        self._literals[literal, is_personal] = result
        return result

    def file_name(self, name: str) -> str:
        """Return the name of a file or directory; numbers and words of formats are kept."""
        return _WORD.sub(lambda found: self._word(found[0]), name)

    def _replaced(self, text: str) -> str:
        if _NOT_AVAILABLE.fullmatch(text):
            return text
        text = _PERSONAL_SETTING.sub(lambda one: f"{one[1]}={self._all(one[2])}", text)
        return _TOKEN.sub(self._token, text)

    def _all(self, text: str) -> str:
        return _ALPHANUMERIC.sub(lambda found: self._name(found[0]), text)

    def _token(self, found: re.Match[str]) -> str:
        if (word := found["word"]) is not None:
            return self._word(word)
        if found["id"] is not None:
            return self._name(found[0])
        path, function = self._path(found["path"]), found["function"] or ""
        if path != found["path"]:
            function = _WORD.sub(lambda one: self._word(one[0]), function)
        return path + function

    def _word(self, word: str) -> str:
        letters = word.rstrip("0123456789")
        if _NUMBER.fullmatch(word) or (
            (len(letters) <= _SHORT or letters.lower() in self._public)
            and word.isascii()
            and not _OWN.fullmatch(word)
        ):
            return word
        return self._name(word)

    def _path(self, path: str) -> str:
        """Return a path with other names; from a public package on it is kept."""
        separator = "\\" if "\\" in path and "/" not in path else "/"
        parts = path.split(separator)
        kept = len(parts)
        if (first := parts[0].partition(".")[0]) in _PACKAGES or first in stdlib_module_names:
            kept = 0
        for at, part in enumerate(parts[:-1]):
            following = parts[at + 1].partition(".")[0]
            if (part in _INSTALLED and following in _PACKAGES) or (
                _PYTHON.fullmatch(part) and following in stdlib_module_names
            ):
                kept = at
                break
        if not _LOCATION.match(path):  # a name such as HBM 0/Read
            return _WORD.sub(lambda one: self._word(one[0]), path)
        return separator.join(
            part
            if at >= kept or part in _PLACES or part in _INSTALLED or _PYTHON.fullmatch(part)
            else self._component(part)
            for at, part in enumerate(parts)
        )

    def _component(self, part: str) -> str:
        stem, dot, ending = part.rpartition(".")
        if dot and stem and ending.lower() in _KNOWN_ENDINGS:
            return f"{self._component(stem)}.{ending}"
        return self._name(part)

    def _name(self, word: str) -> str:
        if (name := self.names.get(word)) is None:
            name = self.names[word] = f"w{len(self.names) + 1}"
        return name
