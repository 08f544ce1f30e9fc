"""Candidate -> shared library: compilers in a sandbox, and the cache of what they made."""
