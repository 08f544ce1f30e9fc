"""Saved records -> tables. Reads records only; no torch."""
