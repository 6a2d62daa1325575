"""Generates PROF_* directories and the tables that a decoder must find in them.

A `Recipe` describes the content of a recording; equal recipes give equal bytes. `generate` lays
out the workload in nanoseconds, encodes it with the decoder's table of layouts, and returns the
expected tables, which are derived from the workload and not by decoding.

    recording = generate(tmp_path, Recipe(seed=7, operators=100, mix_share=0.2))
    recording.path            # the PROF_* directory
    recording.tables["TASK"]  # columns of the table, with texts instead of string ids
"""

from tests.prof_generator.recipe import COUNTERS, HOST_USAGE, Recipe
from tests.prof_generator.recording import Recording, generate

__all__ = ["COUNTERS", "HOST_USAGE", "Recipe", "Recording", "generate"]
