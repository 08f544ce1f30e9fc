"""Seeds from the installed libraries: what each offers, matched against a catalogue and really run."""
