"""Candidates from seeds: chains of operators such as a person would write, sized for the stack at hand.

`schedule` says how many operators task number n has, `affinity` which operator follows which, `chain` solves shapes on
meta tensors, `sizing` meets the time, `emission` writes the module; `builtin` and `language_model` compose, `run`
appends what they compose to a dataset's folder.
"""
