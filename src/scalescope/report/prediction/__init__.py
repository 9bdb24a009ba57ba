"""Sections of predictions: rows with intervals, what they assume, changes that would help, and the ledger."""
