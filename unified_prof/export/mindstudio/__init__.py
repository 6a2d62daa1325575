"""The CSV and JSON deliverables of `msprof --type=text`, from an msprof database.

One module a deliverable; `registry` says what that is. `recording` has the tables they share,
`numbers` how the vendor writes times and rounds, `timeline/` the layers of the JSON files.
"""
