"""Arrivals: the launch of `breakdown.py`, with what its own card asks for."""

from scalescope.worker.benchmarks.breakdown import measure

__all__ = ["measure"]
