"""Skill: products of groups of rows with a matrix each, whose sizes only the device knows."""
