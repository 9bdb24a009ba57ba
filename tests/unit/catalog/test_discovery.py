"""A card in any folder of its package is found: nothing is registered."""

from pathlib import Path

import pytest

from scalescope.catalog import cards
from scalescope.cli.options import _setting_options
from scalescope.errors import BadInput
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial
from scalescope.launch.validity import judge
from scalescope.studies.train import TrainStudy
from tests.simulated.launcher import TWO_CORES
from tests.unit.extending import extended

_STRATEGY = '''
from dataclasses import dataclass

from scalescope.catalog.setting import setting
from scalescope.catalog.traits import StrategyTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves(StrategyTraits):
    """A strategy of two ranks per replica."""

    half_size: int = setting(3, "Size of a half.", low=1)

    @staticmethod
    def replicas(world_size: int) -> int:
        return world_size // 2
'''
_LEVER = '''
from dataclasses import dataclass

from scalescope.catalog.setting import Lever, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Turbo:
    """A lever."""

    turbo: bool = setting(False, "Faster.", lever=Lever(tries=(True,)))
'''
_BENCHMARK = '''
from dataclasses import dataclass

from scalescope.catalog.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Reads files."""

    heading = "Disk"
    selects = ()

    file_mb: int = setting(64, "Size of a file.", low=1)

    def steps(self) -> int:
        return 1
'''


def _trials(benchmark: str, **flags: str) -> tuple[Trial, ...]:
    given = {name: (Given(text, f"--{name}"),) for name, text in flags.items()}
    experiment = build_experiment("train", benchmark, {}, given, {})
    return expand(experiment, TWO_CORES).trials


def test_a_new_strategy_can_be_asked_for_with_its_settings(tmp_path: Path) -> None:
    with extended("scalescope.catalog.strategies", tmp_path / "more", halves=_STRATEGY):
        assert "halves" in cards.known_names("strategies")
        (trial,) = _trials("train", strategy="halves", world_size="4", half_size="5")
        assert (trial.strategy, trial.replicas, trial.settings["half_size"]) == ("halves", 2, 5)
        assert "half_size" in cards.all_settings("train")
    assert "halves" not in cards.known_names("strategies")
    with pytest.raises(BadInput, match="halves"):
        cards.card("strategies", "halves")


def test_a_new_lever_gets_a_flag(tmp_path: Path) -> None:
    with extended("scalescope.catalog.levers", tmp_path / "more", turbo=_LEVER):
        assert "--turbo" in {flag for option in _setting_options(TrainStudy) for flag in option.opts}
        (usual,) = _trials("train")
        (faster,) = _trials("train", turbo="true")
        assert usual.trial_id != faster.trial_id
        assert faster.is_on("turbo")
    assert "--turbo" not in {flag for option in _setting_options(TrainStudy) for flag in option.opts}


def test_a_new_benchmark_without_rules_of_validity_has_nothing_to_check(tmp_path: Path) -> None:
    with extended("scalescope.catalog.benchmarks", tmp_path / "cards", disk=_BENCHMARK):
        (trial,) = _trials("disk", file_mb="8")
        assert (trial.benchmark, trial.steps) == ("disk", 1)
        assert judge(trial, []).status == "ok"
