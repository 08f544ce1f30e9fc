"""Task synthesis: seeds crawled from torch and transformers, composed, filtered on the hardware, decontaminated."""
