"""Code of the task stages that runs inside a sandboxed worker."""

#: The role's module: it loads, checks, captures and times one task.
TASK_CHECK = f"{__name__}.taskcheck"
