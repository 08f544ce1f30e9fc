"""Finds what limits a candidate, from the compiler's report, the disassembly, counters and the roofline."""
