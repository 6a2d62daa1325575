"""Decodes PROF_* directories, the raw recordings of Ascend NPUs.

`recording` runs all decoders. Decoders that need only one part of a recording are listed in its
tables. Such a decoder is a function

    def decode(device: DeviceDirectory, sink: Sink) -> None     # or host: HostDirectory

that writes columns to the sink, converts times with `device.clocks`, and reads records with
`device.data.get("hbm")` and `RawFile.pieces(record_type("hbm_v1"))`. It counts skipped data with
`sink.anomaly(name, count, detail)`. If it raises RawFormatError, only its own tables are missing.
"""
