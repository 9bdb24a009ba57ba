"""The first page of help: short for every verb, from what is declared where settings are declared."""

import dataclasses
from collections.abc import Iterator

import click
import click.testing
import pytest

from scalescope.catalog.setting import PerDevice, for_device
from scalescope.cli import app, front_page
from scalescope.cli.help_pages import VerbOption, text_and_examples
from scalescope.cli.options import InWords, MeasuringCommand, SettingOption
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.studies.plan import Plan
from scalescope.studies.prepared import prepare
from scalescope.studies.request import Request
from scalescope.studies.stored import find_study
from scalescope.studies.study import Host
from tests.builders.requests import with_gpus
from tests.simulated.launcher import TWO_CORES

LINES, COLUMNS = 40, 80


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every verb, and every verb inside one, by what is typed for it."""
    context = click.Context(app.app)
    for verb in front_page.verb_names():
        command = app.app.get_command(context, verb)
        assert command is not None
        yield (verb,), command
        if isinstance(command, click.Group):
            yield from (((verb, name), inner) for name, inner in command.commands.items())


COMMANDS = dict(commands())
MEASURING = [words[0] for words, command in COMMANDS.items() if isinstance(command, MeasuringCommand)]


def page(*words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit) as leaving:
        app.main(list(words))
    assert leaving.value.code == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_a_screen_and_all_flags_are_on_the_second_page(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = page(*words, "--help", capsys=capsys)
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    usage, blank, purpose, *_ = lines
    assert usage.startswith(f"Usage: scalescope {' '.join(words)} ")
    assert blank == "" and purpose.startswith("  ") and purpose.strip()
    text = "\n".join(page(*words, "--help-all", capsys=capsys))
    options = [option for option in COMMANDS[words].params if isinstance(option, click.Option)]
    assert all(option.opts[0] in text for option in options if not option.hidden)


@pytest.mark.parametrize("verb", MEASURING)
def test_the_first_page_has_groups_examples_and_what_is_common(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = page(verb, "--help", capsys=capsys)
    headings = [line.removesuffix(":") for line in lines if line.endswith(":") and line[0] != " "]
    assert {"Examples", "Ranks", "Run"} <= set(headings)
    assert headings[-1] == "Run"
    examples = [line for line in lines if line.startswith(f"  scalescope {verb}")]
    commands = [line for line in examples if " -- " in line]
    takes_commands = verb in ("train", "scale", "tune", "run")
    assert (len(examples), len(commands)) == ((3, 1) if takes_commands else (2, 0))
    assert lines[0].endswith("[-- COMMAND...]") == takes_commands
    assert f"scalescope {verb} --help-all" in lines[-1]
    options = [option for option in COMMANDS[verb,].params if isinstance(option, VerbOption)]
    for option in options:
        shown = f"  {option.brief_flag()}" in "\n".join(lines)
        assert shown == (option.common is not None), option.opts
    for example in text_and_examples(COMMANDS[verb,].help or "")[1]:  # they are accepted
        _, _, *words = example.split()
        COMMANDS[verb,].make_context(verb, list(words))


def plan_of(verb: str, machine: Machine) -> Plan:
    study = find_study(verb)
    assert study is not None
    request = Request(verb=verb, benchmark=study.benchmark)
    return prepare(study(), request).on(Host(machine=machine)).plan


def asked_trial(plan: Plan) -> Trial:
    """A trial as it was asked for: on the most ranks, and nothing removed from it."""
    trials = [trial for trial in plan.trials if not trial.is_ablation]
    return max(trials, key=lambda trial: trial.world_size)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("verb", MEASURING)
def test_every_stated_default_is_what_is_measured(verb: str, device: str) -> None:
    plan = plan_of(verb, TWO_CORES if device == "cpu" else with_gpus(4))
    measuring = dataclasses.asdict(plan.experiment.measuring)
    trial = asked_trial(plan)
    options = [option for option in COMMANDS[verb,].params if isinstance(option, SettingOption)]
    wrong = {}
    for option in options:
        name, stated = option.setting.name, option.stated
        if isinstance(stated, InWords):
            continue
        wanted = for_device(stated, device) if isinstance(stated, PerDevice) else stated
        used = measuring[name] if name in measuring else trial.settings.get(name, wanted)
        is_decided = wanted in ("auto", None) and option.setting.none_word in ("auto", "none")
        if used != wanted and not is_decided:
            wrong[name] = (wanted, used)
    assert wrong == {}


# What help says in words, and what it stands for: (on two cores, on four GPUs).
IN_WORDS = {
    ("scale", "world_size"): ("1, 2, 4 ... up to what the machine has", {1, 2}, {1, 2, 4}),
    ("run", "world_size"): ("1, 2, 4 ... up to what the machine has", {1, 2}, {1, 2, 4}),
    ("scale", "batch_size"): ("32,256 on CPU, 256,4096 on GPU", {32, 256}, {256, 4096}),
    ("run", "batch_size"): ("32,256 on CPU, 256,4096 on GPU", {32, 256}, {256, 4096}),
    ("memory", "batch_size"): ("1,2,4,8", {1, 2, 4, 8}, {1, 2, 4, 8}),
    ("comm", "world_size"): ("2 on CPU, all GPUs on GPU", {2}, {4}),
}


@pytest.mark.parametrize(("verb", "name"), IN_WORDS)
def test_a_default_in_words_is_what_is_measured(verb: str, name: str) -> None:
    words, *wanted = IN_WORDS[verb, name]
    (option,) = [option for option in COMMANDS[verb,].params if option.name == name]
    assert isinstance(option, SettingOption)
    assert isinstance(option.stated, InWords)
    assert option.stated.text.partition(";")[0] == words
    for machine, values in zip((TWO_CORES, with_gpus(4)), wanted, strict=True):
        assert set(plan_of(verb, machine).experiment.asked(name)) == values


@pytest.mark.parametrize(("machine", "most"), [(TWO_CORES, 1.5), (with_gpus(4), 3.0)])
def test_the_window_of_run_is_at_most_what_help_says(machine: Machine, most: float) -> None:
    (window,) = plan_of("run", machine).experiment.asked("window")
    assert 0.0 < window <= most


def test_the_window_of_tune_is_a_small_part_of_its_budget() -> None:
    experiment = plan_of("tune", TWO_CORES).experiment
    (window,) = experiment.asked("window")
    assert experiment.measuring.budget is not None
    assert 0.0 < window < 0.02 * experiment.measuring.budget


def test_a_new_common_setting_needs_no_other_file() -> None:
    option = VerbOption(["--example"], help="Does this; and that.", metavar="INT")
    assert (option.brief_flag(), option.brief_text()) == ("--example INT", "Does this.")
