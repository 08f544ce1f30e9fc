"""Which composed tasks are worth keeping: every rule asked of every task, and the time of those that pass."""
