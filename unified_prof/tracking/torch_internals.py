"""Access to torch's internals (`torch_names.PLACES`), each checked before it is used."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

from unified_prof.tracking.torch_names import PLACES, Anomalies, Patches, TorchLookup

Pair = tuple[Any, Any]  # Pack hook and unpack hook.


class UnknownHooksError(LookupError):
    """Hooks cannot be removed temporarily, because they were pushed before tracking began."""


class SavedTensorHooks:
    """Stack of saved-tensor hooks of a thread; torch calls only the pair on top."""

    def __init__(
        self,
        push: Callable[[Any, Any], None],
        pop: Callable[[], None],
        top: Callable[[bool], Pair | None],
    ) -> None:
        self.push = push
        self.pop = pop
        self._top = top

    def top(self) -> Pair | None:
        """Return the hooks on top, None if the stack is empty."""
        return self._top(True)  # returns the hooks even if they are disabled

    def pop_all(self) -> list[Pair]:
        """Empty the stack; return the removed pairs of hooks, top first.

        Raises:
            UnknownHooksError: There are unknown hooks in the stack; it is unchanged.
        """
        hooks: list[Pair] = []
        try:
            while (top := self.top()) is not None:
                hooks.append(top)
                self.pop()
        except UnknownHooksError:
            for pair in reversed(hooks):
                self.push(*pair)
            raise
        return hooks


class PushedHooks:
    """Pairs of hooks that each thread has pushed; for versions of torch that cannot return the top.

    torch refuses to disable hooks if the stack is not empty, so an empty stack can be detected.
    """

    def __init__(self, disabled: Callable[[str], AbstractContextManager[None]]) -> None:
        self._disabled = disabled
        self._threads = threading.local()

    def wrap_push(self, push: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """Wrap `push` so that it also records the pushed hooks."""

        @functools.wraps(push)
        def noting_push(pack: Any, unpack: Any) -> None:
            push(pack, unpack)
            self._stack().append((pack, unpack))

        return noting_push

    def wrap_pop(self, pop: Callable[[], None]) -> Callable[[], None]:
        """Wrap `pop` so that it also removes the popped hooks from the record."""

        @functools.wraps(pop)
        def noting_pop() -> None:
            pop()
            del self._stack()[-1:]

        return noting_pop

    def top(self, _also_while_tracing: bool) -> Pair | None:
        """Return the hooks on top, None if the stack is empty.

        Raises UnknownHooksError if the hooks on top were pushed before tracking began, or the
        autograd engine passed them to one of its threads.
        """
        stack = self._stack()
        if self._is_empty():
            stack.clear()  # the engine leaves the stack as it was
            return None
        if not stack:
            raise UnknownHooksError("saved-tensor hooks were in place before tracking began")
        return stack[-1]

    def _stack(self) -> list[Pair]:
        try:
            return self._threads.stack  # type: ignore[no-any-return]
        except AttributeError:
            stack: list[Pair] = []
            self._threads.stack = stack
            return stack

    def _is_empty(self) -> bool:
        try:
            with self._disabled("uprof checks for saved-tensor hooks"):
                return True
        except RuntimeError:
            return False


class TorchInternals(TorchLookup):
    """Functions of torch's internals, or replacements if this version of torch lacks them."""

    def __init__(self, anomalies: Anomalies) -> None:
        super().__init__(anomalies)
        self._saved_fields: dict[Any, tuple[str, ...]] = {}
        self._pushed_hooks: PushedHooks | None = None
        self._carrier = _plain_tensor()
        self.sequence_number: Callable[[], int] = self._attempt(
            "sequence_number", self._probed_counter, lambda: 0
        )
        """Returns the number of autograd nodes that this thread has created; 0 if not available."""
        self.node_number: Callable[[Any], int] = methodcaller(PLACES["node_number"].path)
        """Returns the value that `sequence_number` had when a node was created."""
        self.plainly: Callable[[], Any] = self._attempt(
            "disable_torch_function", self._without_torch_function, nullcontext
        )
        """Returns a context manager that disables function modes and `__torch_function__`."""
        self.storage_key: Callable[[Any], int] = self._storage_key()
        """Returns a key of a storage that is unique while the storage exists."""

    def mode_stack(self) -> tuple[Callable[[], int], Callable[[], Any], Callable[[Any], None]]:
        """Return functions that count, pop and push the function modes of this thread.

        If torch lacks them, the returned functions report an empty stack and push nothing.
        """
        count, pop, push = (self.find(f"mode_{name}") for name in ("count", "pop", "push"))
        base = self.mode_type()
        if None in (count, pop, push, base):
            return _nothing_there
        try:
            with base() as trial:
                before = count()
                if before < 1 or pop() is not trial:
                    raise TypeError("it pops another mode than was pushed")
                try:
                    push(trial)
                except Exception:
                    trial.__enter__()
                    raise
                if count() != before:
                    raise TypeError("its length is unexpected")
        except Exception as error:
            self.note("mode_push", error)
            return _nothing_there
        return count, pop, push

    def watch_saved_tensor_hooks(self, patches: Patches) -> None:
        """Record which hooks are pushed from now on, if torch cannot return them."""
        if self.find("saved_hooks_top") is not None:
            return
        disable = self.find("saved_hooks_disable")
        pushed = PushedHooks(disable)
        if (
            disable is not None
            and self.replace(patches, "saved_hooks_pop", pushed.wrap_pop)
            and self.replace(patches, "saved_hooks_push", pushed.wrap_push)
        ):
            self._pushed_hooks = pushed

    def saved_tensor_hooks(self) -> SavedTensorHooks | None:
        """Return this thread's stack of saved-tensor hooks; None if not available."""
        push, pop, top = (self.find(f"saved_hooks_{name}") for name in ("push", "pop", "top"))
        if top is None and self._pushed_hooks is not None:
            top = self._pushed_hooks.top
        if None in (push, pop, top):
            return None
        from torch.autograd.graph import saved_tensors_hooks

        hooks = SavedTensorHooks(push, pop, top)
        trial = saved_tensors_hooks(_same, _same)
        try:
            with trial:
                if hooks.top() != (_same, _same):
                    raise TypeError("its top differs from the pushed hooks")
                pop()
                try:
                    push(_same, _same)
                except Exception:
                    trial.__enter__()
                    raise
        except Exception as error:
            self.note("saved_hooks_push", error)
            return None
        return hooks

    def mode_type(self) -> Any:
        """Return the base class of function modes; None if there is none."""
        found = self.find("function_mode")
        if found is not None and not isinstance(found, type):
            self.note("function_mode", TypeError("it is not a class"))
            return None
        return found

    def _attempt(self, key: str, action: Callable[[], Any], default: Any) -> Any:
        """Return the result of `action`; if it fails, record the name at `key` as unsupported."""
        try:
            return action()
        except Exception as error:
            self.note(key, error)
            return default

    def current_node(self) -> Callable[[], Any] | None:
        """Return a function that returns the autograd node about to run; None if not available."""
        found = self.find_once("current_node")
        # No node is running: the call only shows that it works.
        works = self._attempt("current_node", lambda: found() or True, default=False)
        return found if works else None

    def hooking(self, hooks: dict[int, Any]) -> Callable[[Any], None] | None:
        """Return a function that makes a node call `hooks` before it runs; None if not available.

        Nodes keep a reference to the dictionary, so hooks that are removed from it later are no
        longer called. torch uses this function for tensor hooks, and reads the dictionary from a
        tensor.
        """
        if not self.has("node_hooks") or self._carrier is None:
            return None
        try:
            self._carrier._backward_hooks = hooks
        except Exception as error:
            self.note("node_hooks", error)
            return None
        return methodcaller(PLACES["node_hooks"].path, self._carrier)

    def weak_storage(self, storage: Any) -> Any:
        """Return an object that keeps the address of `storage` in use, but not its data."""
        make = self.find("storage_reference")
        return self._attempt("storage_reference", lambda: make(storage), None)

    def saved_fields(self, node_type: Any) -> tuple[str, ...]:
        """Return the attributes in which nodes of a type keep packed saved tensors."""
        fields = self._saved_fields.get(node_type)
        if fields is None:
            prefix, names = PLACES["saved_fields"].path, dir(node_type)
            fields = tuple(name for name in names if name.startswith(prefix))
            self._saved_fields[node_type] = fields
            if not fields and "_saved_self" in names:
                self.note("saved_fields", AttributeError(f"{node_type.__name__} has none"))
        return fields

    def unpacked(self, node: Any, *, hooked_by_program: bool) -> Iterator[Any]:
        """Yield the saved tensors of a node that were not packed by hooks of the program.

        Args:
            node: Autograd node.
            hooked_by_program: True if the program's hooks packed any tensor of the node's call.
                torch before 2.10 then yields nothing, because reading would call unpack hooks.
        """
        for field in self.saved_fields(type(node)):
            saved = getattr(node, field)
            try:
                if not hasattr(saved, "register_hooks"):  # a list of saved tensors
                    continue
                if hasattr(saved, "unpack_hook"):
                    tensor = None if saved.unpack_hook is not None else saved.data
                else:
                    tensor = None if hooked_by_program else getattr(node, field[len("_raw") :])
            except RuntimeError:  # released
                continue
            if tensor is not None:
                yield tensor

    def original_class(self, compiled: Any) -> str:
        """Return the class name of the module from which a compiled module was created."""
        try:
            return type(attrgetter(PLACES["compiled_original"].path)(compiled)).__name__
        except AttributeError as error:
            self.note("compiled_original", error)
            return "Module"

    def is_device_mode(self, mode: Any) -> bool:
        """Return True if a function mode is the one of `torch.set_default_device`."""
        found = self.find("device_mode")
        if isinstance(found, type):
            return isinstance(mode, found)
        self.note("device_mode", TypeError("it is not a class"))
        return type(mode).__name__ == "DeviceContext"

    def is_transformed(self, tensor: Any) -> bool:
        """Return True if a tensor exists, or may exist, only within a torch.func transform."""
        function = self.find_once("functorch_wrapped")
        return bool(self._attempt("functorch_wrapped", lambda: function(tensor), default=True))

    def profiler_enabled(self) -> bool:
        """Return True if torch's profiler is running in this process; False if not available."""
        found = self.find("profiler_enabled")
        return bool(self._attempt("profiler_enabled", lambda: found(), default=False))

    def set_log_level(self, level: int | None) -> int | None:
        """Set torch's C++ log level and return the previous one, None if unknown or unchanged."""
        import torch

        if level is None:
            return None
        library, _, name = PLACES["log_level"].path.partition(":")
        try:
            loaded = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / library))
            flag = ctypes.c_int.in_dll(loaded, name)
        except (OSError, ValueError) as error:
            self.note("log_level", error)
            return None
        before, flag.value = flag.value, level
        return before

    def _probed_counter(self) -> Callable[[], int]:
        found = self.find("sequence_number")
        if not isinstance(found(), int):
            raise TypeError("it returns no number")
        return found  # type: ignore[no-any-return]

    def _without_torch_function(self) -> Callable[[], Any]:
        found = self.find("disable_torch_function")
        with found():
            pass
        return found  # type: ignore[no-any-return]

    def _storage_key(self) -> Callable[[Any], int]:
        key: Callable[[Any], int] = attrgetter(PLACES["storage_address"].path)

        def key_or_address(storage: Any) -> int:
            try:
                return key(storage)
            except AttributeError as error:
                self.note("storage_address", error)
                return int(storage.data_ptr())

        return key_or_address


_nothing_there = (lambda: 0, lambda: 0, lambda _mode: None)


def _plain_tensor() -> Any:
    try:
        import torch

        return torch.empty(0, device="cpu")
    except Exception:  # without tensors there are no nodes
        return None


def _same(value: Any) -> Any:
    return value
