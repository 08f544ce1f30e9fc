"""The pocket preset: its tasks, the table of all choices, transcripts, and a small base model made from them."""
