"""The embedded launcher: verl's engines and losses in this process, on one device."""
