"""A candidate against the reference: admission of the task, trials, and the two error bounds."""
