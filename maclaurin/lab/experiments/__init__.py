"""One module or package an experiment: a function of the same name that returns a Result."""
