"""A task's directory: laid out, locked, snapshot and restored; and the sandbox that its commands run in. No torch."""
