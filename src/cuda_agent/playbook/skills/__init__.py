"""Optimisation skills: notes, templates, and the code that says where each applies."""
