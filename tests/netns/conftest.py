"""Runs on shaped links start as runs with real ranks do."""

from tests.gloo.conftest import start as start
