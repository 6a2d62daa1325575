"""Hand-written recordings of the same model on devices of two vendors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.analysis.builders import Device

STEP_NS = 10_000
INPUTS = ("64,128;128,256;", "c10::BFloat16;c10::BFloat16;")
"""Shapes and types of the inputs of each operation."""


@dataclass(frozen=True)
class Op:
    """One operation of a step."""

    name: str
    kernels: Sequence[tuple[str, str, int]]
    """Name, operator type and duration of each kernel."""
    module: str = "Net_0"
    count: int = 1


GPU = (
    Op("aten::linear", [("nvjet_tst_64x8", "aten::addmm", 100)], "Mlp_0", count=2),
    Op("aten::scaled_dot_product_attention", [("flash_fwd_kernel", "aten::_flash", 300)], "Attn_0"),
    Op("aten::gelu", [("vectorized_elementwise_kernel<Gelu>", "aten::gelu", 40)], "Act_0"),
    Op("aten::silu", [("vectorized_elementwise_kernel<silu>", "aten::silu", 30)], "Glu_0"),
    Op("aten::layer_norm", [("vectorized_layer_norm_kernel", "aten::native_layer_norm", 20)]),
)
NPU = (
    Op(
        "aten::linear",
        [("trans_TransData_1", "TransData", 60), ("aclnnMatmul_1", "MatMulV2", 150)],
        "Mlp_0",
        count=2,
    ),
    Op("npu::npu_fusion_attention", [("aclnnFlash", "FlashAttentionScore", 700)], "Attn_0"),
    Op("aten::gelu", [("aclnnGelu", "Gelu", 70)], "Act_0"),
    Op("npu::npu_gated", [("aclnnSwish", "Swish", 50)], "Glu_0"),
    Op("aten::layer_norm", [("aclnnLayerNorm", "LayerNormV3", 45)]),
)


def recording(
    path: Path,
    operations: Sequence[Op] = GPU,
    *,
    steps: int = 2,
    model: str | None = "NVIDIA H100",
    host: bool = True,
    with_steps: bool = True,
    collective: tuple[str, str] | None = ("ncclDevKernel_AllReduce", "allreduce"),
    group: str = "17",
    reduces_ns: int = 200,
    devices: int = 1,
    warm_up_ns: int = 500,
) -> Path:
    """Write steps of the given operations, with their kernels one after another."""
    with Device(path) as device:
        link = 1
        if warm_up_ns:
            device.task(10, 10 + warm_up_ns, kernel=("fill", "Fill"))
        for step in range(steps):
            start = 1000 + STEP_NS * step
            if with_steps:
                device.call(start, start + STEP_NS - 100, f"ProfilerStep#{step}")
            at = start + 10
            for number in range(devices):
                for op in operations:
                    for _ in range(op.count):
                        if host:
                            device.call(at, at + 9, f"nn.Module: {op.module}", kind=50003)
                        for kernel, (name, operator, took) in enumerate(op.kernels):
                            # Nested operations launch the kernels of one call.
                            if host:
                                if not kernel:
                                    device.call(at + 1, at + 8, op.name, inputs=INPUTS)
                                begin = at + 2 + 2 * kernel
                                device.call(begin, begin + 1, op.name, launches=link)
                            begin = start + 1000 + 10 * (at - start) + 1000 * kernel
                            device.task(
                                *(begin, begin + took),
                                connection=link,
                                kernel=(name, operator),
                                device=number,
                            )
                            link += 1
                        at += 10
                if collective is not None:
                    name = f"{collective[0]}__{step}_{number}_1"
                    begin, end = start + 9000, start + 9000 + reduces_ns
                    device.collective(
                        *(begin, end, name, collective[1]), device=number, group=group
                    )
        device.groups(**{group: {"group_name": "dp", "global_ranks": [0, 1]}})
        if model is not None:
            row = {"id": list(range(devices)), "name": model}
            device.writer.write("NPU_INFO", row)
    return path


def npu_recording(path: Path, operations: Sequence[Op] = NPU, **more: object) -> Path:
    """Write the steps of the same model on an NPU."""
    options: dict[str, object] = {
        "model": "Ascend910B",
        "collective": ("hcom_allReduce", "hcom_allReduce_"),
        "group": "node%eth0_60000_1",
    }
    return recording(path, operations, **(options | more))  # type: ignore[arg-type]
