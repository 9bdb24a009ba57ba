"""Fixtures of real runs."""

from tests.gloo.conftest import run_here, start

__all__ = ["run_here", "start"]
