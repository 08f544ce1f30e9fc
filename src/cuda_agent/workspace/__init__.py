"""Lays out, locks, snapshots and restores the directory of a task, and runs commands in a sandbox. Never imports
torch."""
