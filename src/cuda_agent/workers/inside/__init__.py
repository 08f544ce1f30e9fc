"""What runs inside the sandboxed workers, on the untrusted side. Nothing of `judge` or `pool` is imported here."""
