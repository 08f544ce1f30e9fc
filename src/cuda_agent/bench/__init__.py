"""A policy over a suite of tasks: played, measured, compared."""
