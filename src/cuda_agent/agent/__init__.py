"""The ReAct loop, its tools, the policies that drive it, and the run directory."""
