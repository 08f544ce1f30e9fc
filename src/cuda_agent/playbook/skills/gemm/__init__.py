"""Skill (c): matrix products through the vendor's library, chosen by timing."""
