"""Many ranks' recordings as one run: who is slow, who waits for whom, which link, which step.

A rank is mapped to compact columns, a partial, without a look at any other rank; everything
else reads partials alone. Nothing here knows of commands, processes or where files lie.
"""
