"""Measures a user's whole model, extracts its slow submodules as tasks, and puts faster ones back."""
