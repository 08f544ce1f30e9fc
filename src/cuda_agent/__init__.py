"""CUDA Agent: a slow PyTorch module in, a verified faster extension out."""
