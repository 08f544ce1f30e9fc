"""What is said about one task, as text. A model behind an endpoint and a checkpoint in training hear the same."""
