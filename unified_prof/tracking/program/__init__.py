"""The user's program: how it is run, where its iterations end, what is measured in which."""
