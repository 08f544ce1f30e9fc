"""Skill scan."""
