"""Roofline of recordings from real devices, compared with figures computed by hand."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.analysis.explain.roofline.test_of_recording import roofline
from unified_prof.cli.app import app
from unified_prof.explain.roofline.breakdown import Roofline, RooflineRow


def convert_and_analyze(shared: Path, name: str, tmp_path: Path) -> Roofline:
    """Return the roofline of a torch.profiler trace."""
    trace, database = shared / "samples" / "kineto" / f"{name}.json.gz", tmp_path / "trace.db"
    result = CliRunner().invoke(app, ["import", str(trace), "-o", str(database)])
    assert result.exit_code == 0, result.output
    return roofline(database)


def row(found: Roofline, name: str, shapes: str) -> RooflineRow:
    """Return the only row with a name and shapes, which has a cost."""
    (one,) = (one for one in found.rows if one.name == name and one.shapes.startswith(shapes))
    assert one.cost is not None
    return one


VIT_LAYERS, TOKENS = 12, 4 * 197


@pytest.mark.parametrize(
    ("name", "convolution", "peak", "bandwidth"),
    [
        ("h100_vit", "aten::cudnn_convolution", 989e12, 3350e9),
        ("mi300_vit", "aten::miopen_convolution", 1307e12, 5300e9),
    ],
)
def test_vision_transformer_has_the_same_flops_on_both_vendors(
    shared: Path, tmp_path: Path, name: str, convolution: str, peak: float, bandwidth: float
) -> None:
    found = convert_and_analyze(shared, name, tmp_path)
    # Query, key, value and output projections of 12 layers.
    linear = row(found, "aten::addmm", "[768] [788,768] [768,768]")
    assert linear.count == 4 * VIT_LAYERS
    assert linear.cost is not None
    flops = linear.count * 2 * TOKENS * 768 * 768
    moved = linear.count * 2 * (2 * TOKENS * 768 + 768 * 768 + 768)
    assert (linear.cost.flops, linear.cost.moved_bytes) == (flops, moved)
    bound_s = max(flops / peak, moved / bandwidth)
    assert linear.efficiency == pytest.approx(bound_s / (linear.total_ns / 1e9))
    attention = row(found, "aten::_flash_attention_forward", "[4,197,12,64]")
    assert attention.cost is not None
    assert attention.cost.flops == VIT_LAYERS * 4 * 4 * 12 * 197 * 197 * 64
    patches = row(found, convolution, "[4,3,224,224] [768,3,16,16]")
    assert patches.cost is not None
    assert patches.cost.flops == 2 * 4 * 768 * 14 * 14 * 3 * 16 * 16
    norm = row(found, "aten::native_layer_norm", "[4,197,768]")
    assert norm.cost is not None
    assert norm.cost.moved_bytes == 25 * 2 * (2 * TOKENS * 768 + 2 * 768)
    # The model is the same on both devices, so all its matrix FLOPs are the same and known.
    (use,) = found.use
    assert (use.flops, use.known_share) == (140_509_200_384, 1.0)


@pytest.mark.parametrize(
    ("file", "product", "copies"),
    [
        (
            "level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db",
            ("MatMulV2", "[32,9216] [4096,9216]"),
            ("ForeachAddList", 3 * (3 * 4 * 61_100_840 + 4)),
        ),
        ("910A_2024-09_level1.db", ("MatMul", "[576,2,16,16] [576,256,16,16]"), ("AxpyV2", None)),
    ],
)
def test_alexnet_has_the_same_flops_on_two_ascend_generations(
    shared: Path, file: str, product: tuple[str, str], copies: tuple[str, int | None]
) -> None:
    found = roofline(shared / "samples" / "ascend" / file)
    linear = row(found, *product)
    assert linear.cost is not None
    assert linear.cost.flops == 2 * 32 * 9216 * 4096
    for size, channels, results, window in (
        (224, 3, (64, 55), 11),
        (27, 64, (192, 27), 5),
        (13, 192, (384, 13), 3),
    ):
        block = 8 if "rank0" in file else 16
        blocks = -(-channels // block)
        convolution = row(found, "Conv2D", f"[32,{blocks},{size},{size},{block}]")
        assert convolution.cost is not None
        outputs, side = results
        expected = 2 * 32 * outputs * side * side * channels * window * window
        assert convolution.cost.flops == expected
    name, moved = copies
    largest = max((one for one in found.rows if one.name == name), key=lambda one: one.total_ns)
    assert largest.cost is not None
    # Each call reads two tensors and a factor, and writes one tensor.
    assert largest.cost.moved_bytes == (moved or 2 * 3 * 4 * 4096 * 9216 + 2 * 4)
    # Forward and both gradients, except the gradient of the images.
    convolutions = [(64, 55, 3, 11), (192, 27, 64, 5), (384, 13, 192, 3)]
    convolutions += [(256, 13, 384, 3), (256, 13, 256, 3)]
    layers = [2 * 32 * out * side**2 * inputs * k**2 for out, side, inputs, k in convolutions]
    layers += [2 * 32 * 9216 * 4096, 2 * 32 * 4096 * 4096, 2 * 32 * 4096 * 1000]
    (use,) = found.use
    # The 910A computes pooling by small matmuls of padded sizes.
    assert use.flops == pytest.approx(3 * sum(layers) - layers[0], rel=0.003)


def test_device_with_ambiguous_name_follows_from_its_clock_and_blocks(shared: Path) -> None:
    # `Ascend910B` at 1,800 MHz, with 24 and 48 blocks: the older device of that name has 900 MHz.
    name = "level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db"
    (device,) = roofline(shared / "samples" / "ascend" / name).devices.values()
    assert device is not None
    assert (device.name, device.cores, device.vector_cores) == ("Ascend910B2", 24, 48)
