"""The flags of `train` that ask for a trace: what they ask for, what is refused, and what repeats the run."""

import click
import pytest

from scalescope.cli.verbs import train
from scalescope.studies.trace import Profiling
from scalescope.studies.train import TrainStudy


def asked(monkeypatch: pytest.MonkeyPatch, *flags: str) -> TrainStudy:
    """The study that these flags ask for."""
    studies: list[TrainStudy] = []
    monkeypatch.setattr(train, "measure", lambda study, arguments, **options: studies.append(study))
    train.command.main(list(flags), prog_name="train", standalone_mode=False)
    return studies[0]


def test_without_a_flag_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch).profiling is None


@pytest.mark.parametrize(
    ("flags", "profiling"),
    [
        ((), Profiling()),
        (("--profile-steps=5", "--profile-ranks=0,1"), Profiling(steps=5, ranks="0,1")),
        (("--profile-ranges-only",), Profiling(ranges_only=True)),
        (("--nsys",), Profiling(nsys=True)),
    ],
)
def test_flags_choose_what_to_record_and_stored_flags_mean_the_same(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], profiling: Profiling
) -> None:
    first = asked(monkeypatch, "--profile", *flags)
    assert first.profiling == profiling
    assert asked(monkeypatch, *first.flags()) == TrainStudy.from_flags(first.flags()) == first


def test_a_step_is_explained_unless_only_the_speed_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch).breakdown
    plain = asked(monkeypatch, "--no-breakdown", "--profile")
    assert not plain.breakdown and plain.profiling == Profiling()
    assert asked(monkeypatch, *plain.flags()) == plain


def test_words_of_switches_have_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    study = asked(monkeypatch, "--profile", "--nsys", "--profile-ranges-only", "--profile-steps=100")
    assert sorted(study.flags()) == ["--nsys", "--profile", "--profile-ranges-only", "--profile-steps=100"]


@pytest.mark.parametrize("steps", ["0", "101"])
def test_a_trace_holds_one_to_a_hundred_steps(monkeypatch: pytest.MonkeyPatch, steps: str) -> None:
    with pytest.raises(click.BadParameter, match="1<=x<=100"):
        asked(monkeypatch, "--profile", f"--profile-steps={steps}")
