"""Skill (k): numbers put, or added, where indices say."""
