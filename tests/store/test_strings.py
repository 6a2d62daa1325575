"""The pool of strings of a report."""

from hypothesis import given
from hypothesis import strategies as st

from unified_prof.sqlite.batches import StringPool


@given(st.lists(st.text(max_size=5)))
def test_ids_are_dense_in_the_order_of_first_use(texts: list[str]) -> None:
    pool = StringPool()
    ids = [pool.intern(text) for text in texts]
    assert list(dict.fromkeys(ids)) == list(range(len(pool)))
    assert [texts[ids.index(number)] for number in range(len(pool))] == list(dict.fromkeys(texts))


@given(st.lists(st.text(max_size=3)), st.lists(st.text(max_size=3)), st.integers(1, 4))
def test_interning_many_equals_each(first: list[str], second: list[str], size: int) -> None:
    pool, other = StringPool(), StringPool()
    assert pool.intern_all(first).tolist() == [other.intern(text) for text in first]
    assert pool.intern_all(iter(second)).tolist() == [other.intern(text) for text in second]
    batches = list(pool.batches(size))
    assert [i for ids, _ in batches for i in ids] == list(range(len(pool)))
    assert [t for _, texts in batches for t in texts] == list(dict.fromkeys(first + second))
    assert all(len(ids) == len(texts) <= size for ids, texts in batches)
    assert StringPool().intern("a") == StringPool().intern("b") == 0


def test_secrets_in_names_are_masked() -> None:
    pool = StringPool()
    pool.intern_all(["load https://me:hunter22@h/x", "aten::mm", "HF_TOKEN=abcdefgh"])
    masked = ["load https://me:***@h/x", "aten::mm", "HF_TOKEN=***"]
    assert list(pool.batches(3)) == [([0, 1, 2], masked)]
