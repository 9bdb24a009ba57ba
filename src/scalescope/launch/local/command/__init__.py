"""Training commands: started as they are, watched, and ended with everything they started."""
