"""Analysis of the recordings of many ranks as one run: slow ranks, waits, slow links, steps.

Each rank's recording is reduced to a partial (compact columns) independently of the other ranks;
all analyses of the run read only partials. This package does not depend on the command line, on
worker processes or on where files are stored.
"""
