"""The playbook: optimisation skills that turn a captured graph into kernels. Plain data in, text out; no torch."""
