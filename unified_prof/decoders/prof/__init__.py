"""Decodes PROF_* directories, the raw recordings of Ascend NPUs.

Modules everything builds on: `layouts` (binary records), `slices` (data files), `control` (JSON
and start logs), `clocks`, `dictionaries` (texts of hash ids), `directory` (a recording and its
host and device parts).

A decoder is one module for one kind of raw file (or few that belong together) with one function

    def decode(device: DeviceDirectory, sink: Sink) -> None     # or host: HostDirectory

that writes its tables' columns to the sink: times through `device.clocks`, records through
`device.data.get("hbm")` and `RawFile.pieces(record_type("hbm_v1"))`. It is named in the table of
`registry`, with the files that make it worth importing. What it must skip, it counts with
`sink.anomaly(name, count, detail)`; what makes its own file useless it raises as RawFormatError,
which costs that decoder's tables and nothing else.
"""
