"""Saved records -> tables, drawings, one self-contained page; and a person's word. Reads records only; no torch."""
