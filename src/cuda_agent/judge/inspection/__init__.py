"""What limits a candidate: the compiler's report, the disassembly, counters or counted work against the roofline."""
