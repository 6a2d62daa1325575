"""Decodes PROF_* directories, the raw recordings of Ascend NPUs.

The rooms, in the order in which data passes: `raw`, `identity`, `host`, `device`, and side by side
`collectives`, `pmu` and `samples`. The modules here put together what they yield. Everything builds
on `raw`: `layouts` (binary records), `slices` (data files), `control` (JSON and start logs),
`clocks`, `dictionaries` (texts of hash ids), `directory` (a recording, its host and its devices).

A decoder is one module for one kind of raw file (or few that belong together) with one function

    def decode(device: DeviceDirectory, sink: Sink) -> None     # or host: HostDirectory

that writes its tables' columns to the sink: times through `device.clocks`, records through
`device.data.get("hbm")` and `RawFile.pieces(record_type("hbm_v1"))`. It is named in the table of
`registry`, with the files that make it worth importing. What it must skip, it counts with
`sink.anomaly(name, count, detail)`; what makes its own file useless it raises as RawFormatError,
which costs that decoder's tables and nothing else.
"""
