"""The tools of a policy, one file each, and the registry that calls them."""
