"""Finds seeds in the installed libraries: matches their operators with a catalogue, and runs each."""
