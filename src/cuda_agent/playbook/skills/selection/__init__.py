"""Skill (j): the largest, smallest or k-th numbers of rows by radix selection."""
