"""Runs on shaped links start as runs with real ranks do."""

from tests.gloo.conftest import run_here as run_here
from tests.gloo.conftest import start as start
