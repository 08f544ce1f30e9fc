"""The pocket preset: its tasks, the table of all its choices, transcripts, and the small base model made from them."""
