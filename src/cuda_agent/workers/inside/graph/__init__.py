"""The forward pass of a task as a `core.graph.Graph`."""
