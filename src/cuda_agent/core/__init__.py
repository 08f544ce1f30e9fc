"""The nouns that everything passes on: records, errors, configuration, hashing, the stack. Imports nothing of ours."""
