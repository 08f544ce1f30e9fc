"""The command line: the only place that wires the rest together. One small file a command."""
