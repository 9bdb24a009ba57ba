"""How a step goes on N ranks, one file for each way to share the work."""
