"""What a rank does beside computing while its timed steps run, noted at the cost of a few microseconds."""
