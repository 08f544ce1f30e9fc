"""Skill (e): convolutions through cuDNN, engine and memory layout chosen by timing."""
