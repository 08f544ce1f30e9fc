"""The stages of a training, each resumable, chained by checkpoints and a manifest."""
