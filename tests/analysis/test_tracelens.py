"""TraceLens' own reference figures of its public traces, beside ours of the same traces.

Transcribed from the reference tables that lie beside the traces in AMD-AGI/TraceLens, in
`tests/traces`: `ops_summary`, `ops_summary_by_category`, `GEMM`, `CONV_fwd`, `CONV_bwd`,
`SDPA_fwd`, `Normalization`, `BinaryElementwise`, `UnaryElementwise`, `InferenceAttention_fwd`,
`RMSNorm_fwd` and `RoPE_fwd`. Times there are differences of timestamps of some 5e12 microseconds,
which floating point keeps to a thousandth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.test_report import uprof
from unified_prof.explain.api import open_reports
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.explain.roofline import breakdown
from unified_prof.recording.model import Row

pytestmark = pytest.mark.slow

CAPTURES = {
    "vllm_decode_graph_replay": "vllm_decode_graph_capture",
    "sglang_decode_graph_replay": "sglang_decode_graph_capture",
}

# Device time in microseconds of what an operation launched itself.
DIRECT: dict[str, dict[str, float]] = {
    "h100_bert-small": {
        "aten::addmm": 197.59814453125,
        "aten::_flash_attention_forward": 37.408203125,
        "aten::native_layer_norm": 30.912109375,
        "aten::add": 14.752685546875,
        "aten::index_select": 9.823974609375,
        "aten::gelu": 9.5986328125,
        "aten::all": 3.64794921875,
        "aten::_local_scalar_dense": 2.239990234375,
        "aten::eq": 1.760009765625,
        "aten::add_": 1.696044921875,
    },
    "mi300_bert-small": {
        "aten::addmm": 174.130859375,
        "aten::_flash_attention_forward": 113.65576171875,
        "aten::native_layer_norm": 39.51904296875,
        "aten::gelu": 21.7236328125,
        "aten::add": 19.3154296875,
        "aten::index_select": 9.05810546875,
        "aten::all": 4.3291015625,
        "aten::eq": 4.0478515625,
        "aten::add_": 2.56494140625,
        "aten::_local_scalar_dense": 2.40380859375,
    },
    "h100_vit": {
        "aten::addmm": 735.03662109375,
        "aten::cudnn_convolution": 125.632080078125,
        "aten::_flash_attention_forward": 122.84814453125,
        "aten::native_layer_norm": 111.200927734375,
        "aten::gelu": 60.541259765625,
        "aten::add": 57.31298828125,
        "aten::cat": 7.263916015625,
        "aten::add_": 3.968017578125,
        "aten::tanh": 1.5048828125,
    },
    "mi300_vit": {
        "aten::addmm": 942.326171875,
        "aten::_flash_attention_forward": 374.68701171875,
        "aten::native_layer_norm": 139.6953125,
        "aten::add": 130.03369140625,
        "aten::gelu": 65.6572265625,
        "aten::miopen_convolution": 46.341796875,
        "aten::add_": 6.77490234375,
        "aten::cat": 6.77392578125,
        "aten::tanh": 4.0087890625,
    },
    "mi300_resnet_act_checkpoint": {
        "aten::convolution_backward": 5436.97119140625,
        "aten::miopen_convolution": 2631.85546875 + 2316.08056640625,
        "aten::native_batch_norm": 2145.6875 + 1368.7841796875,
        "aten::native_batch_norm_backward": 2951.205078125,
        "aten::copy_": 1633.43310546875,
        "aten::add_": 517.0107421875 + 296.04052734375,
        "aten::clamp_min_": 332.38671875 + 229.06787109375,
        "aten::mul": 460.46533203125,
        "aten::threshold_backward": 239.38916015625,
        "aten::max_pool2d_with_indices_backward": 156.23583984375,
        "aten::fill_": 118.10986328125,
        "aten::_foreach_add_": 90.75634765625,
        "aten::max_pool2d_with_indices": 70.755859375,
        "aten::mm": 44.474609375,
        "aten::mean": 40.2744140625,
        "aten::sum": 23.95703125,
        "aten::mse_loss_backward": 21.35693359375,
        "aten::mse_loss": 19.5966796875,
        "aten::div": 17.71630859375,
        "aten::cat": 17.1943359375,
        "aten::addmm": 16.5966796875,
        # All of its communication; the timeline says the same.
        "record_param_comms": 47200.31005859375,
    },
    "vllm_decode_graph_replay": {
        "vllm::moe_forward": 7171.5322265625,
        "aten::addmm": 953.8779296875,
        "vllm::unified_attention_with_output": 724.361328125,
        "SortTokens": 375.1181640625,
        "aiter::rmsnorm2d_fwd_with_add_ck": 326.0380859375,
        "triton_poi_fused__to_copy_1": 292.3740234375,
        "aten::mm": 276.677734375,
        "_C::rotary_embedding": 149.73828125,
        "_C_cache_ops::reshape_and_cache_flash": 136.41015625,
        "triton_poi_fused_constant_pad_nd_moe_forward_0": 122.6103515625,
        "TopK": 119.814453125,
        "aten::copy_": 45.1494140625,
        "triton_poi_fused_0": 10.59765625,
        "aiter::rms_norm": 5.9990234375,
        "aten::sub": 4.439453125,
        "aten::index": 2.958984375,
    },
    "sglang_decode_graph_replay": {
        "aten::mm": 2417.6591796875 + 2064.244140625 + 903.5185546875 + 396.83203125,
        "sglang_profiler::attention_paged_attention_ragged_100": 2127.86328125,
        "aten::copy_": 346.6484375 + 23.509765625 + 8.451171875,
        "aiter::add_rmsnorm": 346.841796875,
        "aiter::rmsnorm": 337.1220703125,
        "sgl_kernel::silu_and_mul": 324.3671875,
        "sgl_kernel::rotary_embedding": 195.8154296875,
        "sglang::store_cache": 173.54296875,
        "aten::argmax": 53.83984375,
        # Theirs by the calls of the runtime, for no operation called them.
        "(launched by no operation)": 12.1767578125 + 5.4072265625,
        "aten::gather": 13.4990234375,
        "aten::_foreach_copy_": 12.0966796875,
        "aten::neg": 5.6884765625,
        "aten::cumsum": 5.2470703125,
        "aten::arange": 4.24609375,
    },
}

# The part of it that made activations again.
RECOMPUTED = {
    "aten::miopen_convolution": 2316.08056640625,
    "aten::native_batch_norm": 1368.7841796875,
    "aten::add_": 296.04052734375,
    "aten::clamp_min_": 229.06787109375,
    "aten::convolution_backward": 0,
    "aten::mm": 0,
}

# Device time in microseconds by category, where our classes hold the same operations.
CATEGORIES: dict[str, dict[str, float]] = {
    "mi300_bert-small": {
        "matmul": 174.130859375,
        "attention": 113.65576171875,
        "element-wise": 47.65185546875,
        "normalisation": 39.51904296875,
        "reduction": 4.3291015625,
    },
    "mi300_vit": {
        "matmul": 942.326171875,
        "attention": 374.68701171875,
        "normalisation": 139.6953125,
    },
    "sglang_decode_graph_replay": {
        "matmul": 2417.6591796875 + 2064.244140625 + 903.5185546875 + 396.83203125,
        "normalisation": 683.9638671875,
    },
}


class Work(NamedTuple):
    """Work of one call of an operation."""

    name: str
    shapes: str
    """Start of the text of its inputs."""
    calls: int
    gflop: float | None
    """With the bias of a product; None: counted by another convention."""
    mib: float | None


BERT = [
    Work("aten::addmm", "[512] [141,512] [512,512]", 17, 0.0739968, 0.7763671875),
    Work("aten::addmm", "[30522] [141,512] [512,30522]", 1, 4.41119205, 38.211021423339844),
    Work("aten::addmm", "[512] [141,2048] [2048,512]", 4, 0.295770624, 2.689453125),
    Work("aten::addmm", "[2048] [141,512] [512,2048]", 4, 0.2959872, 2.6923828125),
    Work("aten::_flash_attention_forward", "[1,141,8,64]", 4, 0.040716288, 0.55078125),
    Work("aten::add", "[1,141,512] [1,141,512]", 9, 7.2192e-05, 0.4130859375),
    Work("aten::add_", "[1,141,512] [1,141,512]", 1, 7.2192e-05, 0.4130859375),
]
VIT = [
    Work("aten::addmm", "[768] [788,768] [768,768]", 48, 0.930167808, 3.43505859375),
    Work("aten::addmm", "[3072] [788,768] [768,3072]", 12, 3.720671232, 10.27734375),
    Work("aten::addmm", "[768] [788,3072] [3072,768]", 12, 3.71885568, 10.27294921875),
    Work("aten::addmm", "[768] [4,768] [768,768]", 1, 0.004721664, 1.13818359375),
    Work("aten::_flash_attention_forward", "[4,197,12,64]", 12, 0.476884992, 4.6171875),
    Work("aten::add", "[4,197,768] [4,197,768]", 24, 0.000605184, 3.462890625),
    Work("aten::add", "[4,197,768] [1,197,768]", 1, 0.000605184, 2.59716796875),
    Work("aten::add_", "[4,768,14,14] [1,768,1,1]", 1, 0.000602112, 2.29833984375),
]
CONV, BACK, NORM = (
    "aten::miopen_convolution",
    "aten::convolution_backward",
    "aten::native_batch_norm",
)
WORK: dict[str, list[Work]] = {
    "h100_bert-small": BERT,
    "mi300_bert-small": BERT,
    "h100_vit": [
        *VIT,
        Work("aten::cudnn_convolution", "[4,3,224,224] [768,3,16,16]", 1, 0.924844032, 3.421875),
    ],
    "mi300_vit": [*VIT, Work(CONV, "[4,3,224,224] [768,3,16,16]", 1, 0.924844032, 3.421875)],
    "mi300_resnet_act_checkpoint": [
        Work("aten::mm", "[10,1000] [1000,512]", 3, 0.01024, 1.005401611328125),
        Work("aten::mm", "[1000,10] [10,512]", 3, 0.01024, 1.005401611328125),
        Work("aten::addmm", "[1000] [10,512] [512,1000]", 3, 0.01025, 1.0073089599609375),
        Work(CONV, "[10,64,56,56] [64,64,3,3]", 24, 2.31211008, 7.7265625),
        Work(CONV, "[10,512,7,7] [512,512,3,3]", 18, 2.31211008, 5.45703125),
        Work(CONV, "[10,256,14,14] [256,256,3,3]", 18, 2.31211008, 3.0390625),
        Work(CONV, "[10,128,28,28] [128,128,3,3]", 18, 2.31211008, 4.109375),
        Work(BACK, "[10,64,56,56] [10,64,56,56] [64,64,3,3]", 12, 4.62422016, None),
        Work(BACK, "[10,512,7,7] [10,512,7,7] [512,512,3,3]", 9, 4.62422016, None),
        Work(BACK, "[10,128,28,28] [10,128,28,28] [128,128,3,3]", 9, 4.62422016, None),
        Work(BACK, "[10,512,7,7] [10,256,14,14] [512,256,1,1]", 3, 0.25690112, None),
        Work(NORM, "[10,64,56,56]", 24, None, 7.656982421875),
        Work(NORM, "[10,128,28,28]", 30, None, 3.82958984375),
        Work("aten::clamp_min_", "[10,64,56,56]", 24, None, 7.65625),
        Work("aten::add_", "[10,64,56,56] [10,64,56,56]", 21, 0.00200704, 11.484375),
        Work("aten::mul", "[512] [512]", 30, 5.12e-07, 0.00196075439453125),
        Work(
            "aten::threshold_backward",
            "[10,64,56,56] [10,64,56,56]",
            12,
            0.00200704,
            11.484375,
        ),
    ],
    "vllm_decode_graph_replay": [
        Work("aten::addmm", "[5120] [32,2880] [2880,5120]", 24, 0.94388224, 28.623046875),
        Work("aten::addmm", "[2880] [32,4096] [4096,2880]", 24, 0.75506688, 22.9312744140625),
        Work("aten::addmm", "[32] [32,2880] [2880,32]", 24, 0.005899264, 0.35357666015625),
        Work("aten::mm", "[32,2880] [2880,201088]", 1, 37.06454016, 1117.05859375),
        Work("vllm::unified_attention_with_output", "", 24, 0.902529024, 108.08984375),
        Work("aiter::rmsnorm2d_fwd_with_add_ck", "[32,2880]", 48, None, 0.7086181640625),
        Work("aiter::rms_norm", "[32,2880] [2880]", 1, None, 0.3570556640625),
        Work("aten::copy_", "[32] [32] int64 int32", 1, None, 0.0003662109375),
    ],
    "sglang_decode_graph_replay": [
        Work("aten::mm", "[32,4096] [4096,24576]", 36, 6.442450944, 193.75),
        Work("aten::mm", "[32,12288] [12288,4096]", 36, 3.221225472, 97.0),
        Work("aten::mm", "[32,4096] [4096,6144]", 36, 1.610612736, 48.625),
        Work("aten::mm", "[32,4096] [4096,4096]", 36, 1.073741824, 32.5),
        Work("aten::mm", "[32,4096] [4096,151936]", 1, 39.829110784, 1196.5234375),
        Work(
            "sglang_profiler::attention_paged_attention_ragged_100",
            "",
            36,
            0.53714944,
            128.56640625,
        ),
        Work("aiter::add_rmsnorm", "[32,4096]", 72, None, 1.0078125),
        Work("aiter::rmsnorm", "[256,128]", 36, None, 0.125244140625),
        Work("aiter::rmsnorm", "[1024,128]", 36, None, 0.500244140625),
        Work("aiter::rmsnorm", "[32,4096]", 1, None, 0.5078125),
        Work("sgl_kernel::silu_and_mul", "[32,12288] [32,24576]", 36, None, 2.25),
        Work("sgl_kernel::rotary_embedding", "[32] [32,4096]", 36, 0.00049152, None),
        Work("aten::copy_", "[32,4096] [32,4096]", 36, None, 0.5),
        Work("aten::copy_", "[32,1024] [32,1024]", 36, None, 0.125),
        Work("aten::copy_", "[32,151936] [32,151936]", 1, None, 27.8203125),
    ],
}


@contextmanager
def analysis_of(name: str, shared: Path, folder: Path) -> Iterator[MsprofAnalysis]:
    """Import a trace, with the trace of its graphs' capture where there is one."""
    found: dict[str, Path] = {}
    for one in (name, CAPTURES.get(name)):
        if one is not None:
            found[one] = folder / f"{one}.db"
            trace = shared / "samples" / "kineto" / f"{one}.json.gz"
            run = uprof("import", trace, "-o", found[one])
            assert run.returncode == 0, run.stderr
    capture = found[CAPTURES[name]] if name in CAPTURES else None
    with open_reports(found[name], capture=capture) as opened:
        (analysis,) = opened.analyses
        assert isinstance(analysis, MsprofAnalysis)
        yield analysis


def told_ns(expected_us: float, pieces: int) -> object:
    """Return a time as their arithmetic leaves it: each piece is off by up to a nanosecond."""
    return pytest.approx(expected_us * 1000, abs=1 + pieces)


@pytest.mark.parametrize("name", DIRECT)
def test_figures_are_those_of_their_reference(name: str, shared: Path, tmp_path: Path) -> None:
    with analysis_of(name, shared, tmp_path) as analysis:
        rows = {row.name: row for row in analysis.breakdown("self").rows}
        agree_in_time(name, rows)
        classes = {row.name: row for row in analysis.breakdown("class").rows}
        for category, expected_us in CATEGORIES.get(name, {}).items():
            row = classes[category]
            assert row.total_ns == told_ns(expected_us, row.count), category
        found = breakdown.of(analysis.recording).rows
        for work in WORK[name]:
            placed = [
                one
                for one in found
                if one.name == work.name and f"{one.shapes} ".startswith(f"{work.shapes} ".lstrip())
            ]
            assert len(placed) == 1, (work, [one.shapes for one in placed])
            (one,) = placed
            assert one.count == work.calls, work
            assert one.cost is not None
            if work.gflop is not None:
                bias = one.cost.beside if work.name == "aten::addmm" else 0
                assert one.cost.flops + bias == pytest.approx(work.gflop * 1e9 * one.count), work
            if work.mib is not None:
                assert one.cost.moved_bytes == pytest.approx(work.mib * 2**20 * one.count), work


def agree_in_time(name: str, rows: Mapping[str, Row]) -> None:
    """Compare the time of each operation; theirs are all that launched work, but for what is ours.

    For the training they drop work without a launch, and name collectives elsewhere.
    """
    for operation, expected_us in DIRECT[name].items():
        row = rows[operation]
        pieces = int(row.extra.get("launches") or row.count)
        assert row.total_ns == told_ns(expected_us, pieces), operation
    more = {one for one, row in rows.items() if row.total_ns} - set(DIRECT[name])
    assert more <= {"(launched by no operation)"}
    if name == "mi300_resnet_act_checkpoint":
        for operation, expected_us in RECOMPUTED.items():
            again = rows[operation].extra["recomputed_ns"]
            assert again == told_ns(expected_us, 400), operation
    else:
        assert more == set()


# Kernel -> runs, mean, median, standard deviation of a sample, smallest and largest, in us.
KERNELS = {
    "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8": (
        (17, 5.806942210477941, 5.7919921875),
        (0.11484330395890131, 5.633056640625, 6.080078125),
    ),
    "flash_fwd_kernel": (
        (4, 9.35205078125, 9.1201171875),
        (0.48558925894809657, 9.087890625, 10.080078125),
    ),
    "vectorized_layer_norm_kernel": (
        (10, 3.0912109375, 3.0560302734375),
        (0.09052056327519079, 3.008056640625, 3.262939453125),
    ),
}


def test_statistics_of_kernels_are_those_of_their_reference(shared: Path, tmp_path: Path) -> None:
    with analysis_of("h100_bert-small", shared, tmp_path) as analysis:
        found = analysis.statistics("kernel")
        counts = {row.name: row for row in analysis.breakdown("kernel").rows}
        for part, ((count, mean, median), (deviation, least, most)) in KERNELS.items():
            (key,) = (one for one in found if part in one[0])
            row, figures = counts[key[0]], found[key]
            assert row.count == count
            assert row.total_ns == told_ns(mean * count, count)
            assert figures["median_ns"] == told_ns(median, 1)
            assert figures["stddev_ns"] == told_ns(deviation, 1)
            assert (figures["min_ns"], figures["max_ns"]) == (told_ns(least, 1), told_ns(most, 1))


# Difference of two BERTs: kernels under the lowest common operation, in us on each side.
DIFFERENCE = {
    "linear": (174.130859375, 197.59814453125),
    "scaled_dot_product_attention": (113.65576171875, 37.408203125),
    "layer_norm": (39.51904296875, 30.912109375),
    "gelu": (21.7236328125, 9.5986328125),
    "add": (19.3154296875, 14.752685546875),
    "embedding": (9.05810546875, 9.823974609375),
    "all": (4.3291015625, 3.64794921875),
    "eq": (4.0478515625, 1.760009765625),
    "add_": (2.56494140625, 1.696044921875),
    "memcpy device to device -> memcpy device to host": (2.40380859375, 2.239990234375),
}


def test_the_difference_of_two_vendors_is_theirs(shared: Path, tmp_path: Path) -> None:
    sides = []
    for name in ("mi300_bert-small", "h100_bert-small"):
        sides.append(tmp_path / f"{name}.db")
        trace = shared / "samples" / "kineto" / f"{name}.json.gz"
        assert uprof("import", trace, "-o", sides[-1]).returncode == 0
    run = uprof("diff", *sides, "--format", "json")
    found = json.loads(run.stdout)["breakdowns"]["operation"]
    assert {row["name"] for row in found} == set(DIFFERENCE)
    for row in found:
        for side, expected_us in zip(("base", "new"), DIFFERENCE[row["name"]], strict=True):
            assert row[side]["total_ns"] == told_ns(expected_us, row[side]["runs"])
