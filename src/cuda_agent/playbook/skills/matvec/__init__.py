"""Matrix–vector products: no kernels of their own; `algebra` writes them as a multiplication and a sum, which is a row
reduction."""
