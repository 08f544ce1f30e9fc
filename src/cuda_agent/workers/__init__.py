"""Sandboxed processes: how they start, answer bounded messages and share memory; the GPU's lock; processor affinity."""
