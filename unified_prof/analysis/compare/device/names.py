"""One name for an operation, whichever backend's word a recording has for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from unified_prof.analysis.explain.roofline.peaks import RATES
from unified_prof.analysis.explain.roofline.tensors import dtype_of

_NODE: Final = re.compile(r"Backward\d*$")
_WORDS: Final = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TYPE: Final = re.compile(r"[A-Z][A-Za-z\d]{1,60}$")
"""An operator type of CANN: `MatMulV2`, `FlashAttentionScoreGrad`."""
_VERSION: Final = re.compile(r"V\d+$|(?<=[a-z])D$")
_DIMENSIONS: Final = re.compile(r"\[(\d[\d,]*)\]")
_TYPES_OF_INPUTS: Final = re.compile(r"([A-Za-z][\w ]*)\[\d")
_OPTIMIZER: Final = "Optimizer.step#"
_BACKENDS: Final = ("_npu_", "npu_", "miopen_", "cudnn_", "native_", "mkldnn_", "hip_", "cuda_")

_SAME: Final = {
    name: one
    for one, names in {
        "scaled_dot_product_attention": (
            "scaled_dot_product_flash_attention scaled_dot_product_efficient_attention "
            "scaled_dot_product_cudnn_attention scaled_dot_product_attention_math "
            "scaled_dot_product_fused_attention_overrideable flash_attention_forward "
            "efficient_attention_forward fusion_attention fusion_attention_v2 "
            "prompt_flash_attention incre_flash_attention fused_infer_attention_score "
            "flash_attention_score unified_attention unified_attention_with_output flash_attention"
        ),
        "matmul": "mat_mul batch_mat_mul batch_matmul",
        "convolution": "cudnn_convolution miopen_convolution slow_conv2d_forward",
        "layer_norm": "native_layer_norm",
        "batch_norm": "native_batch_norm _batch_norm_impl_index",
        "rms_norm": "fused_rms_norm rms_norm_forward add_rms_norm",
        "softmax": "softmax_v2 _softmax",
        "log_softmax": "log_softmax_v2",
        "silu": "swish",
        "mul": "muls",
        "add": "adds",
        "div": "divs real_div",
        "rotary_embedding": "rotary_mul rotary_position_embedding apply_rotary_pos_emb rope",
        "to": "_to_copy to_copy",
        "fused_adamw": "fused_adamw_ apply_adam_w apply_adam_wv2 apply_adam_w_v2",
        "fused_adam": "fused_adam_ apply_adam apply_adam_v2",
    }.items()
    for name in names.split()
}


@lru_cache(maxsize=1 << 16)
def canonical(name: str) -> str:
    """Return the one name of an operation: without namespace, backend and version.

    `aten::linear` is linear, `npu::npu_fusion_attention` the attention that it stands for,
    `MatMulV2` matmul. What is not known keeps its name.
    """
    if "<" in name or len(name) > 200:
        return name
    if name.startswith(_OPTIMIZER):
        return name.removeprefix(_OPTIMIZER)
    bare = name.rpartition("::")[2] or name
    if _NODE.search(bare):
        return f"{canonical(_snake(_NODE.sub('', bare)))} backward"
    if bare == name and _TYPE.match(name):
        bare = _snake(_VERSION.sub("", name))
    for backend in _BACKENDS:
        if bare.startswith(backend):
            bare = bare.removeprefix(backend)
            break
    found = _SAME.get(bare)
    if found is None:
        short = bare.lstrip("_")
        found = _SAME.get(short, short)
    return found or name


def _snake(name: str) -> str:
    return _WORDS.sub("_", name).lower()


@lru_cache(maxsize=1 << 16)
def shape(text: str | None) -> str | None:
    """Return recorded input shapes as people read them: `8x197x768, 768x768`; None: none."""
    if text is None:
        return None
    parts = ["x".join(part.split(",")) for part in re.split(r"[;\s\"]+", text) if part.strip(" |,")]
    return ", ".join(parts) or None


@lru_cache(maxsize=1 << 16)
def shape_of_inputs(text: str) -> str | None:
    """Return the same of inputs with their types: `float[8,768], long int[7]`; None: none.

    What has no dimensions is a number, or an argument that was not given.
    """
    found = [dims.replace(",", "x") for dims in _DIMENSIONS.findall(text)]
    return ", ".join(found) or None


@lru_cache(maxsize=1 << 16)
def dtype_of_inputs(text: str) -> str | None:
    """Return the type that an operation calculates in: that of its first input with a peak."""
    told = (dtype_of(kind) for kind in _TYPES_OF_INPUTS.findall(text))
    return next((dtype for dtype in told if dtype in RATES), None)


def together(names: Iterable[str]) -> tuple[str, ...]:
    """Return distinct names in order of first use."""
    return tuple(dict.fromkeys(names))
