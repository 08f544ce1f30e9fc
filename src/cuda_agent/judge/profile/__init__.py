"""A verified candidate and the baselines on the clock."""
