"""Skill pointwise."""
