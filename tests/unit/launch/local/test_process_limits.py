"""Limits on descriptors and processes: raised where that is allowed, refused where they are too low."""

import os
import resource
from pathlib import Path

import pytest

from scalescope.errors import CannotRun
from scalescope.launch.local import processes
from scalescope.launch.local.processes import check_limits

_NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


class MadeUpLimits:
    """Soft and hard limits; remembers what is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits = {resource.RLIMIT_NOFILE: _NO_LIMIT, resource.RLIMIT_NPROC: _NO_LIMIT}
        monkeypatch.setattr(resource, "getrlimit", self.limits.__getitem__)
        monkeypatch.setattr(resource, "setrlimit", self.limits.__setitem__)
        monkeypatch.setattr(os, "getuid", lambda: 1000)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> MadeUpLimits:
    return MadeUpLimits(monkeypatch)


def test_high_limits_are_left_alone(system: MadeUpLimits) -> None:
    check_limits(ranks=1000, threads=100)
    assert set(system.limits.values()) == {_NO_LIMIT}
    system.limits[resource.RLIMIT_NOFILE] = (1024, 4096)
    check_limits(ranks=8, threads=1)
    assert system.limits[resource.RLIMIT_NOFILE] == (1024, 4096)


def test_a_soft_limit_is_raised(system: MadeUpLimits) -> None:
    system.limits[resource.RLIMIT_NOFILE] = (24, 4096)
    check_limits(ranks=2, threads=1)
    soft, hard = system.limits[resource.RLIMIT_NOFILE]
    assert 24 < soft < 100 and hard == 4096


def test_a_hard_limit_that_is_too_low_is_refused(system: MadeUpLimits) -> None:
    system.limits[resource.RLIMIT_NOFILE] = (24, 24)
    with pytest.raises(CannotRun, match=r"^only 24 files may be open .* 2 ranks need 36; "):
        check_limits(ranks=2, threads=1)


def test_what_the_user_runs_already_is_not_left(
    system: MadeUpLimits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for thread in range(90):
        (tmp_path / "17" / "task" / str(thread)).mkdir(parents=True)
    (tmp_path / "self").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp_path / "17", 1000, -1)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: (tmp_path / "17").stat().st_uid)
    system.limits[resource.RLIMIT_NPROC] = (100, 100)
    check_limits(ranks=1, threads=4)
    with pytest.raises(CannotRun, match=r"^10 of 100 processes .* 2 ranks need 20; "):
        check_limits(ranks=2, threads=4)


def test_the_limit_does_not_apply_to_root(system: MadeUpLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    system.limits[resource.RLIMIT_NPROC] = (1, 1)
    check_limits(ranks=2, threads=4)
