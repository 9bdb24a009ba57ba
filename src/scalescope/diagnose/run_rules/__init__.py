"""Rules about a run as a whole, one a file, found by name: `rule(run, facts of all configurations)`."""
