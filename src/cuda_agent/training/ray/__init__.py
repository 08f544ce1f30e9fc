"""The launcher `ray`: verl's own trainer over any number of nodes, with our agent loop and the judge as Ray actors."""
