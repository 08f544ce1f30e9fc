"""A task inside its worker: its module, inputs, weights, variants and oracle."""
