"""What a simulated step amounts to: figures with intervals, how many ranks pay off, what a change gains."""
