"""Exports a verified kernel as a package, an operator of torch, or a project for Hugging Face's `kernels`."""
