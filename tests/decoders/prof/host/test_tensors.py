import numpy as np
import pytest

from unified_prof.decoders.prof import tensors
from unified_prof.decoders.prof.tensors import TensorTexts, data_type_text, format_text


def record(*tensors: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    words = np.zeros(55, np.uint32)
    for place, tensor in enumerate(tensors):
        words[11 * place : 11 * place + len(tensor)] = tensor
    return words


def test_inputs_and_outputs_have_separate_texts() -> None:
    texts = TensorTexts()
    first = record([0, 2, 1, 128, 256], [1, 29, 0, 7], [0, 0x12000003, 99, 2**31 - 1, 1])
    lists = texts.signatures(np.stack([first, first]), np.array([3, 2]))
    inputs, outputs = texts.texts(int(lists[0]))
    assert (inputs.formats, inputs.data_types) == ("ND;NC1HWC0", "FLOAT16;99")
    assert inputs.shapes == '"128,256;2147483647,1"'
    assert (outputs.formats, outputs.data_types, outputs.shapes) == ("FRACTAL_NZ", "FLOAT", '"7"')
    assert texts.texts(int(lists[1]))[0].shapes == '"128,256"'


def test_missing_tensors_are_na_and_a_scalar_has_an_empty_shape() -> None:
    texts = TensorTexts()
    assert texts.texts(0)[0].shapes == "N/A"
    scalar = texts.signatures(np.stack([record([1, 2, 3])]), np.array([1]))
    assert texts.texts(int(scalar[0]))[1].shapes == '""'


def test_records_of_one_operator_are_concatenated() -> None:
    texts = TensorTexts()
    rows = np.stack([record(*[[0, 2, 0, n] for n in range(1, 6)]), record([0, 2, 0, 9])])
    lists = texts.signatures(rows, np.array([5, 1]))
    whole = texts.concatenate(lists[:1], lists[1:])
    assert texts.texts(int(whole[0]))[0].shapes == '"1;2;3;4;5;9"'


def test_excessive_tensor_count_is_limited_to_five() -> None:
    texts = TensorTexts()
    lists = texts.signatures(np.stack([record([0, 2, 0, 1])]), np.array([4_000_000_000]))
    assert texts.texts(int(lists[0]))[0].formats.count(";") == 4


@pytest.mark.parametrize("cache_size", [1 << 16, 1])
@pytest.mark.parametrize("checksums_differ", [True, False])
def test_records_are_distinguished_by_content_not_by_checksum(
    monkeypatch: pytest.MonkeyPatch, *, checksums_differ: bool, cache_size: int
) -> None:
    monkeypatch.setattr(tensors, "_MAX_CACHED", cache_size)
    if not checksums_differ:
        monkeypatch.setattr(tensors, "_MIX", np.zeros(55, np.uint64))
    texts = TensorTexts()
    dims = np.array([7, 5, 7, 9, 5, 11, 7])
    rows = np.stack([record([0, 2, 0, dim], [0, 2, 0, dim + 1]) for dim in dims.tolist()])
    number = np.array([1, 2, 2, 1, 2, 1, 1])
    for part in (slice(0, 4), slice(3, 7), slice(0, 7)):
        lists = texts.signatures(rows[part], number[part])
        shapes = [texts.texts(index)[0].shapes for index in lists.tolist()]
        assert shapes == [
            f'"{dim}"' if filled == 1 else f'"{dim};{dim + 1}"'
            for dim, filled in zip(dims[part].tolist(), number[part].tolist(), strict=True)
        ]
    assert len(texts) == 1 + len({(*pair,) for pair in zip(dims, number, strict=True)})


@pytest.mark.parametrize(
    ("word", "text"),
    [(2, "ND"), (253, "253"), (999, "231:3"), (40, "RESERVED"), (3 | 5 << 8, "NC1HWC0:5")],
)
def test_formats_have_names(word: int, text: str) -> None:
    assert format_text(word) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "FLOAT"), (5, "5"), (27, "DT_BF16"), (34, "DT_HIFLOAT8"), (99, "99")]
)
def test_data_types_have_names(number: int, text: str) -> None:
    assert data_type_text(number) == text
