"""The environment in which a policy plays: real tools in a real workspace, and the judge's verdicts with a memo."""
