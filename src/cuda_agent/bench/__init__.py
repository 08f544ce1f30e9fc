"""Plays a policy on a suite of tasks, measures the results and compares runs."""
