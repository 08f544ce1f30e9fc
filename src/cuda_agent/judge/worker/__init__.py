"""What runs inside the sandboxed workers. The judge itself imports nothing from here."""
