"""Synthesises tasks: seeds from torch and transformers are composed, filtered on the hardware and decontaminated."""
