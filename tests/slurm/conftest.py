"""One cluster for all these tests; commands start as runs with real ranks do."""

from collections.abc import Iterator

import pytest

from tests.gloo.conftest import start as start
from tests.slurm.cluster import one_host_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[str, str]]:
    """The variables that lead commands to a SLURM of two nodes."""
    with one_host_cluster() as variables:
        yield variables
