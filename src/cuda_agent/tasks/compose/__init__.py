"""Composes candidates from seeds: natural chains of operators, with sizes for the target stack.

`schedule` gives the number of operators of task n, `affinity` says which operator follows which, `chain` solves shapes
on meta tensors, `sizing` meets the time, and `emission` writes the module. `builtin` and `language_model` are
composers, and `run` appends their tasks to a dataset's folder.
"""
