"""From a verified kernel to what a team uses: a model taken apart into tasks, the gate, the exports."""
