"""Recorded launches of a training command: a few steps of the script under the profiler of our own ranks."""
