"""The ReAct loop, its tools, the policies that drive it, and what it leaves on disk."""
