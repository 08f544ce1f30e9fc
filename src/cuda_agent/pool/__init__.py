"""Where evaluations run besides this machine."""
