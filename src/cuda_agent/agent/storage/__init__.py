"""What a run leaves on disk: its directory, turns, candidates and checkpoints."""
