"""No task of ours may stand in an evaluation set, nor twice in our own: two independent tests on every pair."""
