"""A user's whole model: where its time goes, its hot submodules as tasks, and what faster ones do for the whole."""
