import numpy as np

from tests.decoders.prof.memory_sink import MemorySink
from unified_prof.decoders.prof.host_records import Contexts
from unified_prof.decoders.prof.operators import unroll_ranges


def test_context_ranges_are_unrolled_and_impossible_ones_counted() -> None:
    sink = MemorySink()
    bounds = np.array([[0, 2], [5, 4], [7, 7], [0, 2**32 - 1]], np.uint32)
    ids, sizes = unroll_ranges(bounds, sink)
    assert ids.tolist() == [0, 1, 2, 7]
    assert sizes.tolist() == [3, 0, 1, 0]
    assert sink.anomalies == {"bad_context_range": 2}


def test_wide_range_affects_only_itself() -> None:
    bounds = np.tile(np.array([0, 1], np.uint32), (50_000, 1))
    bounds[7] = [0, 65_535]
    ids, _ = unroll_ranges(bounds, MemorySink())
    assert len(ids) == 2 * 49_999 + 65_536


def test_every_context_of_a_call_is_a_row_of_its_launches() -> None:
    contexts = Contexts(
        np.array([3, 8]), np.array([0, 2]), np.array([2, 3]), np.array([4, 5, 6], np.uint32)
    )
    position, context = contexts.expand(np.array([8, 1, 3, 3]))
    assert position.tolist() == [0, 2, 2, 3, 3]
    assert context.tolist() == [6, 4, 5, 4, 5]
