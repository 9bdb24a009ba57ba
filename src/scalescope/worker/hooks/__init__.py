"""What runs inside a training command that nobody edited: counts its steps, times them, and ends it."""
