"""A task inside its worker: its source as a module, its inputs, weights, variants and oracle."""
