"""Rules about the step of one configuration, on one rank or many."""
