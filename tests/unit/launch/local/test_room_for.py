"""The memory that a rank's model may take: its share of the host's, unless it may run out."""

import dataclasses

import pytest

from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import settings_of
from scalescope.launch.local import launcher
from scalescope.launch.local.launcher import room_for
from scalescope.results.ranks.rank_job import ROOM_VARIABLE
from tests.builders.results import make_trial

LIMITS = Measuring(**{setting.name: setting.default for setting in settings_of(Measuring)})  # type: ignore[arg-type]


def test_ranks_share_the_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "usable_memory", lambda: 1000)
    assert room_for(make_trial(world_size=2), LIMITS) == {ROOM_VARIABLE: "500"}


def test_there_is_no_limit_where_running_out_is_allowed_or_memory_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher, "usable_memory", lambda: 1000)
    assert room_for(make_trial(), dataclasses.replace(LIMITS, allow_oom=True)) == {}
    assert room_for(make_trial().replace(memory_limit=1 << 20), LIMITS) == {}
    monkeypatch.setattr(launcher, "usable_memory", lambda: None)
    assert room_for(make_trial(), LIMITS) == {}
