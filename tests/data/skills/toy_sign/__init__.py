"""A skill that tests add as a folder."""
