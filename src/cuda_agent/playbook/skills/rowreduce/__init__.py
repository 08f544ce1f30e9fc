"""Skill rowreduce."""
