"""The CSV and JSON files of `msprof --type=text`, written from an msprof database.

`writer` lists the files, `registry` writes them and formats numbers like msprof, `recording` reads
the tables that several files need. The `timeline*` modules write the layers of the JSON files.
"""
