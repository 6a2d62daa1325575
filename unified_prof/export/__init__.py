"""Reports written again as the files that other tools' readers expect."""
