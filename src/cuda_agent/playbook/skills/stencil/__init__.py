"""Skill stencil."""
