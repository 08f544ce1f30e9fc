"""Removes tasks that are in an evaluation set, or twice in the dataset, by two independent tests on every pair."""
