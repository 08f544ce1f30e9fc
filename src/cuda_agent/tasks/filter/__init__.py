"""Filters composed tasks: checks each by every rule, and times those that pass."""
