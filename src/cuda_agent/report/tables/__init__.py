"""Saved records as tables for a terminal."""
