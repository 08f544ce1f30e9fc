"""Code of the task stages that runs inside a sandboxed worker."""

#: what the forks of a zygote answer: one task, loaded, checked, captured and timed.
TASK_CHECK = f"{__name__}.taskcheck"
