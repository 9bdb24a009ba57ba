"""Builders of what tests look at: trials, results, traces, requests, runs, and processes that act."""
