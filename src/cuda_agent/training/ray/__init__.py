"""The launcher `ray`: verl's trainer on any number of nodes, with our agent loop and the judge as Ray actors."""
