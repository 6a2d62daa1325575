"""Names in tables are shortened and stay distinct; programs get full names."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import Device
from tests.cli.test_report import uprof
from unified_prof.report import names
from unified_prof.report.document import Column, display_columns

AT = "at::native::"
FUNCTOR = f"{AT}BinaryFunctor<float, float, float, {AT}binary_internal::MulFunctor<float> >"
LAMBDA = (
    f"{AT}gpu_kernel_impl_nocast<{FUNCTOR} >(at::TensorIteratorBase&, {FUNCTOR} const&)::"
    "{lambda(int)#1}"
)
BINARY = f"void {AT}elementwise_kernel<128, 2, {LAMBDA}>(int, {LAMBDA})"
GELU = (
    f"void {AT}vectorized_elementwise_kernel<4, {AT}GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    f"{AT}GeluType)::{{lambda()#2}}::operator()() const::{{lambda()#4}}::operator()() const::"
    "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)"
)
ADD = (
    "void {0}vectorized_elementwise_kernel<{1}, {0}CUDAFunctor_add<{2}>, "
    "std::array<char*, 3ul> >(int)"
)
SYMBOLS = {
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": "ncclDevKernel_Generic",
    BINARY: "elementwise_kernel<...BinaryFunctor<MulFunctor>>",
    GELU: "vectorized_elementwise_kernel<...GeluCUDAKernelImpl>",
    ADD.format(AT, 4, "float"): "vectorized_elementwise_kernel<...CUDAFunctor_add>",
    f"void {AT}(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)": (
        "vectorized_layer_norm_kernel"
    ),
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)": (
        "fused_add_rms_norm_kernel"
    ),
    "void cutlass::Kernel2<cutlass_80_s1688gemm_tn>(cutlass_80_s1688gemm_tn::Params)": (
        "Kernel2<...cutlass_80_s1688gemm_tn>"
    ),
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    ),
    "foo::bar(float*) [clone .kd]": "bar",
    "void (anonymous namespace)::store<2048l, 4, false>((anonymous namespace)::Params)": "store",
    f"before void {AT}fill<(int)4>(T3) (cudaLaunchKernel)": "before fill (cudaLaunchKernel)",
    "_Z9my_kernelPf": "my_kernel",
    "_ZN7acme_ai3ops12silu_and_mulI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_i": (
        "silu_and_mul<...silu>"
    ),
    "_ZN4acme5entryILi1ENS_6Norm2dILi256EDF16bEEEEvT0_ x3": "entry<...Norm2d> x3",
    f"{ADD.format(AT, 4, 'float')} x36": "vectorized_elementwise_kernel<...CUDAFunctor_add> x36",
}


@pytest.mark.parametrize("name", SYMBOLS, ids=SYMBOLS.values())
def test_symbol_is_shortened_to_its_distinctive_parts(name: str) -> None:
    assert names.short_symbol(name) == SYMBOLS[name]


@pytest.mark.parametrize(
    "name",
    [
        "aten::linear",
        "(outside any module)",
        "(between operations)",
        "Memcpy HtoD (Pageable -> Device)",
        "examples/transformer.py:45 (+3)",
        "model.py:50 (was model.py:45)",
        "torch/nn/modules/module.py(1501): _call_impl",
        "<built-in method run_backward of torch._C._EngineBase object at 0x7f>",
        "triton_poi_fused_add_0",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "a<b",
        "net.<script>",
        "Linear(in=3)",
        "f(x",
        "_Z",
        "_ZN99short",
        "_ZTVN4acme1AE",
        "",
    ],
)
def test_other_names_are_not_shortened(name: str) -> None:
    assert names.short_symbol(name) == name


@given(st.text(st.sampled_from("ab1:<>(){}[],*& -_~ZNILE")))
def test_any_name_can_be_shortened(name: str) -> None:
    assert names.short_symbol(name) or not name
    assert names.short_symbol(name, arguments=True) or not name


def test_mangled_names_that_differ_only_in_types_stay_distinct() -> None:
    of_float, of_half = "_ZN4acme4normIfLi4EEEvPT_", "_ZN4acme4normIDhLi4EEEvPT_"
    assert names.readable_names([of_float, of_half]) == (of_float, of_half)
    assert names.readable_names([of_float, of_float.replace("i4", "i8")]) == ("norm<4>", "norm<8>")


def test_shortening_of_nested_names_is_fast() -> None:
    for text in (
        "f<" * 50_000,
        "_ZN1fI" + "1a" * 8_000,
        "f" + "<a" * 150 + ">" * 150 + "()",
        "(" * 1000 + ")" * 1000,
    ):
        assert names.readable_names([text, text])


def test_kernels_with_different_types_stay_distinct() -> None:
    single, double = ADD.format(AT, 4, "float"), ADD.format(AT, 4, "double")
    assert names.readable_names([single, double, GELU]) == (
        "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char*, 3ul>>",
        "vectorized_elementwise_kernel<4, CUDAFunctor_add<double>, array<char*, 3ul>>",
        "vectorized_elementwise_kernel<...GeluCUDAKernelImpl>",
    )


@given(st.text(), st.integers(0, 50))
def test_truncated_name_keeps_start_and_end(text: str, width: int) -> None:
    cut = names.truncate_middle(text, width)
    assert len(cut) == min(len(text), width)
    if len(text) <= width:
        assert cut == text
    elif width > 10:
        assert cut[:4] == text[:4]
        assert cut[-2:] == text[-2:]


def test_equal_adjacent_rows_are_merged() -> None:
    columns = [
        Column("", ("gone", "gone", "gone", "slower", "gone")),
        Column("operation", ("add", "add", "add", "add", "add"), is_name=True),
        Column("change", ("-1 µs", "-1 µs", "-2 µs", "-2 µs", "-1 µs")),
    ]
    grouped = display_columns(columns)
    assert grouped[1].cells == ("add (x2)", "add", "add", "add")
    assert grouped[2].cells == ("-1 µs", "-2 µs", "-2 µs", "-1 µs")
    assert display_columns(grouped) == grouped


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """An msprof database with CUDA kernel names."""
    return write_kernels(tmp_path / "msprof_1.db", 1000)


def write_kernels(path: Path, duration: int) -> Path:
    with Device(path) as device:
        at = 0
        for name in SYMBOLS:
            device.task(at, at + duration, kernel=(name, name))
            at += 2 * duration
        for _ in range(7):
            device.task(at, at + duration, kernel=("same", "same"))
            at += 2 * duration
    return path


def test_table_is_limited_csv_is_not(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = uprof("report", recording, "--by", "kernel").stdout
    assert 80 < max(map(len, shown.splitlines())) <= 200
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.delenv("LINES", raising=False)
        limited = uprof("report", recording, "--by", "kernel").stdout
    assert max(map(len, limited.splitlines())) <= 80
    for short in SYMBOLS.values():
        assert short in shown
    for form in ("csv", "json"):
        printed = uprof("report", recording, "--by", "kernel", "--format", form).stdout
        rows = (
            list(csv.DictReader(io.StringIO(printed)))
            if form == "csv"
            else json.loads(printed)["reports"][0]["breakdowns"]["kernel"]["rows"]
        )
        assert {row["name"] for row in rows} == {*SYMBOLS, "same"}
    assert BINARY in uprof("report", recording, "--by", "kernel", "--full-names").stdout


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_diff_shortens_names_like_report(recording: Path, form: str) -> None:
    new = write_kernels(recording.with_name("msprof_2.db"), 1500)
    printed = uprof("diff", recording, new, "--format", form, "--all")
    assert printed.returncode == 0
    widest = max(map(len, printed.stdout.splitlines()))
    assert widest <= (200 if form == "text" else 420), "Markdown escapes characters"
    assert "BinaryFunctor" in printed.stdout
    assert BINARY not in printed.stdout
    assert re.search(r"same [ |]*7 ", printed.stdout.replace("\\", ""))
    whole = uprof("diff", recording, new, "--full-names", "--all").stdout
    assert BINARY in whole
