"""Policies: what chooses the next action. One file each."""
