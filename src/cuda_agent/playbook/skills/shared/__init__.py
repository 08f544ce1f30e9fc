"""What several skills share: headers, and partial states of reductions."""
