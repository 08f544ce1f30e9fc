"""Skill (i): attention in one kernel, float32 through TF32 tensor cores."""
