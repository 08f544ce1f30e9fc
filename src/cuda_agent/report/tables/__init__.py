"""Shows saved records as tables in a terminal."""
