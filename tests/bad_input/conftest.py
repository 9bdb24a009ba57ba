"""Real ranks for the few inputs that only a rank can refuse."""

from tests.gloo.conftest import run_here

__all__ = ["run_here"]
