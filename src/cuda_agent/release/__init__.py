"""Extracts tasks from a model, promotes verified kernels through a gate, and exports them."""
