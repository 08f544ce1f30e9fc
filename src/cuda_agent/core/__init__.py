"""The shared records, errors, configuration and hashes. It imports no other package of the project."""
