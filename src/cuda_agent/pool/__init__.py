"""Shares devices, cores and compilers between tasks, on this machine or on a cluster."""
