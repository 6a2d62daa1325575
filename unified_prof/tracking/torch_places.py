"""The names in torch that tracking touches beyond torch's public interface: all of them, here.

A new torch may move any of them: each says what a report lacks without it. `torch_lookup`
finds them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """A name in torch, and what a report lacks without it."""

    path: str
    """`module:attribute.attribute`, or the bare name of an attribute that objects of torch have."""
    loss: str
    since: tuple[int, int] = (0, 0)
    """The first torch that has it; its absence before that is no news."""


_NO_OPERATIONS = "operations are not seen"
_NO_BACKWARD_OWNER = "backward times belong to no operation"
_NO_ACTIVATIONS = "activations are not measured"
_NO_PEAK = "peak memory is not measured"
_LONGER = "iterations take longer while they are measured, as gradients are set to None"
_NO_REGIONS = "regions of record_function are not seen"
_NO_COMPILED = "compiled regions are not seen as operations"

PLACES: dict[str, Place] = {
    # Operations.
    "mode_count": Place("torch._C:_len_torch_function_stack", _NO_OPERATIONS),
    "mode_pop": Place("torch._C:_pop_torch_function_stack", _NO_OPERATIONS),
    "mode_push": Place("torch._C:_push_on_torch_function_stack", _NO_OPERATIONS),
    "function_mode": Place("torch.overrides:TorchFunctionMode", _NO_OPERATIONS),
    "device_mode": Place(
        "torch.utils._device:DeviceContext",
        "the mode of torch.set_default_device is known by its name only",
    ),
    "has_torch_function": Place(
        "torch.overrides:has_torch_function",
        "inference fast paths of attention may not be taken while operations are watched",
    ),
    "function_apply": Place(
        "torch.autograd:Function.apply", "autograd functions of the program are not operations"
    ),
    "optimizer_zero_grad": Place("torch.optim:Optimizer.zero_grad", _LONGER),
    "module_zero_grad": Place("torch.nn:Module.zero_grad", _LONGER),
    # Regions that a program marks.
    "region_enter": Place("torch.autograd.profiler:record_function.__enter__", _NO_REGIONS),
    "region_exit": Place("torch.autograd.profiler:record_function.__exit__", _NO_REGIONS),
    "nvtx": Place("torch.cuda.nvtx:_nvtx", "ranges of NVTX are not seen as regions"),
    # The compiler.
    "compile": Place("torch:compile", _NO_COMPILED),
    "compiled_module_call": Place(
        "torch._dynamo.eval_frame:OptimizedModule.__call__", _NO_COMPILED
    ),
    "compiled_original": Place("_orig_mod", "compiled modules are named without their class"),
    "compiler_stance": Place(
        "torch._dynamo.eval_frame:_callback_from_stance",
        "functions compiled before tracking began may be compiled once more",
        since=(2, 6),
    ),
    "compiler_skips": Place(
        "torch._dynamo.trace_rules:add",
        "a compiled step of an optimizer may be compiled in more pieces, and slower",
    ),
    # The backward pass.
    "backward_engine": Place(
        "torch.autograd.graph:_engine_run_backward", "backward passes of tensors are not timed"
    ),
    "autograd_engine": Place(
        "torch.autograd:_engine_run_backward", "backward passes of torch.autograd are not timed"
    ),
    "sequence_number": Place("torch._C:_autograd._get_sequence_nr", _NO_BACKWARD_OWNER),
    "current_node": Place(
        "torch._C:_current_autograd_node", "backward passes take longer while they are timed"
    ),
    "node_hooks": Place("_register_hook_dict", "backward passes take longer while they are timed"),
    "node_number": Place("_sequence_nr", _NO_BACKWARD_OWNER),
    "functorch_wrapped": Place(
        "torch._C:_functorch.is_functorch_wrapped_tensor",
        "whether the loss is finite is not looked at",
    ),
    # What is saved for it.
    "saved_hooks_push": Place(
        "torch._C:_autograd._push_saved_tensors_default_hooks", _NO_ACTIVATIONS
    ),
    "saved_hooks_pop": Place(
        "torch._C:_autograd._pop_saved_tensors_default_hooks", _NO_ACTIVATIONS
    ),
    "saved_hooks_top": Place(
        "torch._C:_autograd._top_saved_tensors_default_hooks",
        "activations are not measured below hooks that were in place before tracking began",
        since=(2, 8),
    ),
    "saved_hooks_enter": Place(
        "torch.autograd.graph:saved_tensors_hooks.__enter__",
        "what is saved below hooks of the program's own is not seen",
    ),
    "saved_hooks_disable": Place(
        "torch.autograd.graph:disable_saved_tensors_hooks",
        "activations are not measured, as transforms of torch.func would refuse to run",
    ),
    "disable_torch_function": Place(
        "torch._C:DisableTorchFunction", "activations of tensor subclasses may be charged twice"
    ),
    "saved_fields": Place("_raw_saved_", "Python numbers saved by operations are not counted"),
    "storage_address": Place("_cdata", "storages are told apart by the address of their data"),
    "storage_reference": Place(
        "torch.multiprocessing.reductions:StorageWeakRef",
        "a storage that takes the address of an earlier one is not counted",
    ),
    # Peak memory.
    "profiler_enabled": Place("torch.autograd:_profiler_enabled", _NO_PEAK),
    "profiler_prepare": Place("torch.autograd.profiler:profile._prepare_trace", _NO_PEAK),
    "log_level": Place(
        "libc10.so:FLAGS_caffe2_log_level", "torch may warn of blocks that it releases"
    ),
    # Iterations and weights.
    "optimizer_pre_hook": Place(
        "torch.optim.optimizer:register_optimizer_step_pre_hook",
        "the steps of optimizers are not seen: iterations are those of unified_prof.step()",
    ),
    "optimizer_post_hook": Place(
        "torch.optim.optimizer:register_optimizer_step_post_hook",
        "the steps of optimizers are not seen: iterations are those of unified_prof.step()",
    ),
    "scaler_step": Place("torch.amp:GradScaler.step", "steps that a scaler left out are not seen"),
    "module_call": Place(
        "torch.nn:Module.__call__",
        "calls of a model end no iteration: they are those of unified_prof.step()",
    ),
    "tensor_backward": Place(
        "torch:Tensor.backward",
        "backward passes end no iteration: without an optimizer they are those of "
        "unified_prof.step()",
    ),
    "register_parameter": Place(
        "torch.nn:Module.register_parameter", "the lines that registered weights are not known"
    ),
    "module_state": Place(
        "torch.nn:Module.__setstate__", "the lines that copied weights are not known"
    ),
}

OPERATIONS = tuple(key for key, place in PLACES.items() if place.loss is _NO_OPERATIONS)
"""Without one of these no operation is seen."""


def version_of(torch: Any) -> tuple[int, int]:
    """Return the major and minor version of torch, zeros where it has another form."""
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return (int(found[1]), int(found[2])) if found else (0, 0)
