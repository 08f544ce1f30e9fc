"""The tools of a policy, one class each, and the registry that calls them."""
