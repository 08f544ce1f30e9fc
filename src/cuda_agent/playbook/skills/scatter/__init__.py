"""Skill (k): values stored or combined at the places that indices give."""
