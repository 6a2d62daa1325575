"""What to do first: rules that look at one recording, each in a module of `rules`."""
