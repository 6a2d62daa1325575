"""Tests of the strings of hash ids: known or not, in any order of first use."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.prof.memory_sink import MemorySink
from unified_prof.decoders.prof.directory import Dictionaries
from unified_prof.decoders.prof.operators import HashTexts

KNOWN = {1: "MatMul", 2: "AddAicpuKernel", 3: "AllReduceAivKernel", 1 << 63: "Large"}


@given(st.lists(st.lists(st.sampled_from([*KNOWN, 7, 8, 9]), max_size=5), max_size=5))
def test_every_batch_says_which_hashes_have_a_text(batches: list[list[int]]) -> None:
    texts = HashTexts(Dictionaries(KNOWN), MemorySink().strings)
    for batch in batches:
        hashes = np.array(batch, np.uint64)
        assert texts.has_text(hashes).tolist() == [value in KNOWN for value in batch]
        _, schedules, communicates = texts.names(hashes)
        assert schedules.tolist() == [value == 2 for value in batch]
        assert communicates.tolist() == [value == 3 for value in batch]
