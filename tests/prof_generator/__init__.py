"""Writes PROF_* directories of our own making, and says what a decoder must find in them.

A `Recipe` says what a recording has in it; the same recipe gives the same bytes. `generate` lays
out the workload in nanoseconds first, then encodes it by the decoder's own table of layouts, and
returns the tables that the database must have: worked out from the workload, not by decoding.

    recording = generate(tmp_path, Recipe(seed=7, operators=100, mix_share=0.2))
    recording.path            # the PROF_* directory
    recording.tables["TASK"]  # columns of the table, texts instead of string ids
"""

from tests.prof_generator.recipe import COUNTERS, HOST_USAGE, Recipe
from tests.prof_generator.recording import Recording, generate

__all__ = ["COUNTERS", "HOST_USAGE", "Recipe", "Recording", "generate"]
