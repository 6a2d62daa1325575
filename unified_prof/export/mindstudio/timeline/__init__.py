"""The layers of the vendor's timeline, each a process of a viewer.

`events` says how an event and a process are written; every other module is one layer with one
function `events(recording, processes)` that yields JSON texts of events, some thousand at a time,
and nothing where the recording has none.
"""
