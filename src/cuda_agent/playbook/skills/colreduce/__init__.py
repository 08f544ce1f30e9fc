"""Skill colreduce."""
