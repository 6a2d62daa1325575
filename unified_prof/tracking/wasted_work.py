"""Find work on a CPU that is not needed: known values, padding, dense gradients, slow code.

A value is known if it is the same function of the same tensors. Values are numbered as in a
compiler. A tensor from elsewhere (weight, batch) has the same number as long as it is the same
object with the same version and content.
"""

from __future__ import annotations

import json
import weakref
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import Any

from unified_prof.tracking.torch_internals import TorchInternals

# Number of elements that are compared to notice changes that torch does not count, as by NumPy.
_SAMPLED = 64
# Numbering takes about 30 us per call, so the rest of longer iterations is left out.
_MAX_CALLS = 20_000
_MANY_READS = 32  # Reads of elements in a pass of an autograd function that are a Python loop.
_FEW = 4  # Minimum rows of a table for each row that is looked up.
_PLAIN = (int, float, bool, str, type(None), type(Ellipsis))
EARLIER, SAME = "earlier", "same"


class _UnknownValueError(Exception):
    """The value of an argument cannot be compared."""


class WastedWork:
    """Looks at the arguments and results of the operations of some iterations."""

    def __init__(self, internals: TorchInternals) -> None:
        self._internals = internals
        self._new = count()
        self._tensors: dict[int, tuple[Any, tuple[Any, ...], Any]] = {}
        """By `id`: weak reference, state and value."""
        self._values: dict[Any, tuple[Any, int]] = {}
        """By function and arguments: value, and the iteration that computed it first."""
        self._iteration = self._seen = 0
        self._has_tensor = False
        self._random: Any = None
        self.calls: dict[int, str] = {}
        """Calls of the last iteration whose value an EARLIER or the SAME iteration computed."""
        self._facts: dict[str, str] = {}
        self._tables: dict[int, tuple[int, int, int]] = {}
        """By `id` of a table with dense gradients: rows, rows looked up, bytes."""
        self._current_node = internals.current_node()
        self.running: str | None = None
        """Autograd function of the program whose forward pass runs."""
        self._applied: Counter[str] = Counter()
        self._reads: Counter[tuple[str, str]] = Counter()
        """Reads of elements by autograd function and pass; NumPy counts as a loop."""

    def begin(self) -> None:
        """Begin another iteration."""
        self._iteration, self._seen, self.calls, self._facts = self._iteration + 1, 0, {}, {}
        self._tables, self.running = {}, None
        self._applied, self._reads = Counter(), Counter()

    @property
    def facts(self) -> dict[str, str]:
        """Findings in the last iteration besides known values, as facts of a report."""
        tables = [one for one in self._tables.values() if one[0] >= _FEW * one[1]]
        functions: dict[str, list[str]] = {}
        for (name, part), reads in self._reads.items():
            if reads >= _MANY_READS * self._applied[name]:
                functions.setdefault(name, []).append(part)
        found = {"dense_embeddings": tables, "python_functions": functions}
        return self._facts | {name: json.dumps(some) for name, some in found.items() if some}

    def function_begins(self, name: Any, function: Any) -> None:
        """Note a call of an autograd function of the program, for which `name` is a text.

        Args:
            name: Its name, or another operation.
            function: Its `apply`, bound to the class.
        """
        cls = getattr(function, "__self__", None)
        self.running = None
        if (
            isinstance(name, str)
            and isinstance(cls, type)
            and not cls.__module__.startswith("torch.")
        ):
            self.running = name
            self._applied[name] += 1

    def note_read(self, method: str) -> None:
        """Note a call of a method that returns values of a tensor, such as `numpy` or `item`."""
        name, part = self.running, "forward"
        if name is None and self._applied and self._current_node is not None:
            node = type(self._current_node()).__name__
            name, part = node.removesuffix("Backward"), "backward"
        if name is not None and name in self._applied:
            self._reads[name, part] += _MANY_READS * self._applied[name] if method == "numpy" else 1

    def key(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what determines the result of a call that follows; None if it is unknown."""
        import torch

        self._seen += 1
        if self._seen > _MAX_CALLS:
            return None
        self._has_tensor = False
        with self._internals.plainly():
            if func is torch.nn.functional.embedding:
                self._note_lookup(*args, **kwargs)
            elif self._tables:
                # The gradient of a table with another use, such as tied logits, is dense.
                for one in args:
                    self._tables.pop(id(one), None)
            if torch.is_autocast_enabled("cpu"):
                self._note_autocast(torch.get_autocast_dtype("cpu"))
            try:
                key = func, self._described(args), self._described(kwargs)
                hash(key)
            except (_UnknownValueError, TypeError):
                return None
            self._random = torch.get_rng_state()
        return key

    def note(self, key: Any, result: Any, call: int | None) -> None:
        """Note the result of the operation with this key, and the number of its call."""
        import torch

        with self._internals.plainly():
            if key is None or not torch.equal(self._random, torch.get_rng_state()):
                return
            known = self._values.get(key)
            value, iteration = known or (next(self._new), self._iteration)
            self._values[key] = value, iteration
            for index, one in enumerate(result if isinstance(result, (tuple, list)) else [result]):
                if isinstance(one, torch.Tensor):
                    with suppress(_UnknownValueError):
                        self._tensors[id(one)] = weakref.ref(one), _state(one), (value, index)
            if known and call is not None and self._has_tensor:
                self.calls[call] = EARLIER if iteration < self._iteration else SAME

    def _note_lookup(
        self,
        tokens: Any,
        weight: Any,
        padding_idx: int | None = None,
        _max_norm: Any = None,
        _norm_type: Any = None,
        _scale: Any = None,
        sparse: bool = False,
        **_options: Any,
    ) -> None:
        """Note rows with dense gradients, and positions at which a whole batch is padded."""
        import torch

        if weight.requires_grad and torch.is_grad_enabled() and not sparse:
            used = self._tables.get(id(weight), (0, 0, 0))[1] + tokens.numel()
            self._tables[id(weight)] = len(weight), used, weight.nbytes
        if padding_idx is not None and tokens.dim() == 2 and "padding" not in self._facts:
            columns = (tokens == padding_idx).all(0)
            self._facts["padding"] = json.dumps([int(columns.sum()), len(columns)])

    def _note_autocast(self, dtype: Any) -> None:
        """Note a data type in which this processor does not compute."""
        import torch

        name = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype)
        if name and not getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")():
            self._facts["slow_autocast"] = str(dtype).removeprefix("torch.")

    def _described(self, value: Any) -> Any:
        """Return a hashable description of an argument.

        Raises _UnknownValueError if the argument may change without notice.
        """
        import torch

        if isinstance(value, torch.Tensor):
            self._has_tensor = True
            return self._number(value)
        if isinstance(value, (tuple, list)):
            return type(value), *(self._described(one) for one in value)
        if isinstance(value, dict):
            return tuple((name, self._described(one)) for name, one in value.items())
        if isinstance(value, slice):
            return slice, value.start, value.stop, value.step
        if isinstance(value, (*_PLAIN, torch.dtype, torch.device, torch.layout)):
            return type(value), value
        raise _UnknownValueError

    def _number(self, tensor: Any) -> Any:
        state = _state(tensor)
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == state:
            return known[2]
        value = next(self._new), 0
        self._tensors[id(tensor)] = weakref.ref(tensor), state, value
        return value


def _state(tensor: Any) -> tuple[Any, ...]:
    """Return what changes if the content of a tensor does.

    Raises _UnknownValueError if it is unknown, as in inference mode and for subclasses.
    """
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):  # may run code of the program
        raise _UnknownValueError
    try:
        sample = None
        if tensor.is_contiguous():
            every = max(1, tensor.numel() // _SAMPLED)
            sample = tuple(tensor.detach().view(-1)[::every].tolist())
        return tensor._version, tensor.data_ptr(), sample
    except Exception as error:  # torch has no common error for tensors without content
        raise _UnknownValueError from error
