"""Cards are discovered; each is complete and has its implementation."""

import ast
import dataclasses
from pathlib import Path

import pytest

import scalescope.catalog
from scalescope.catalog import cards
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import check_value, settings_of
from scalescope.errors import BadInput

PACKAGE = Path(scalescope.catalog.__file__).parent.parent
KINDS = ("benchmarks", "data", "levers", "strategies", "workloads")
EVERY_CARD = [(kind, name) for kind in KINDS for name in cards.names(kind)]
EVERY_SETTING = [
    setting
    for owner in (Placement, Measuring, *(cards.card_in(kind, name) for kind, name in EVERY_CARD))
    for setting in settings_of(owner)
]


def _modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_card_has_an_implementation_of_its_name_and_the_other_way_round(kind: str) -> None:
    with_card = _modules(PACKAGE / "catalog" / kind)
    assert list(cards.names(kind)) == sorted(with_card)
    with_card -= {"workloads": {"command"}, "strategies": {"script"}}.get(kind, set())  # no code of ours
    if kind == "data":  # made up by the workload itself, or brought along by it: nothing to load
        with_card -= {"synthetic", "own"}
    assert with_card == _modules(PACKAGE / "worker" / kind)


def test_no_kind_of_card_is_forgotten_here() -> None:
    folders = {path.name for path in (PACKAGE / "catalog").iterdir() if (path / "__init__.py").exists()}
    assert folders == set(KINDS)


def test_a_card_describes_itself() -> None:
    for kind, name in EVERY_CARD:
        card = cards.card_in(kind, name)
        assert card.__name__.lower() == name.replace("_", "")
        assert card.__doc__ is not None
        assert not card.__doc__.startswith(
            f"{card.__name__}("
        )  # the docstring that a dataclass gets by default


@pytest.mark.parametrize("card", sorted({setting.card for setting in EVERY_SETTING}))
def test_every_setting_has_help_an_allowed_default_and_bounds(card: str) -> None:
    for setting in (setting for setting in EVERY_SETTING if setting.card == card):
        assert len(setting.help) > 10 and setting.help.isprintable(), setting.name
        assert setting.help.rstrip().endswith((".", ")")), setting.name
        assert (setting.low is not None) == (setting.kind in ("int", "float", "duration", "bytes")), (
            setting.name
        )
        assert setting.kind != "int" or setting.high is not None, setting.name
        for device in ("cpu", "cuda"):
            default = setting.default_for(device)
            if default is None:
                assert setting.optional or setting.kind == "env", setting.name
            else:
                assert check_value(setting, default, setting.name) == default
            for value in () if setting.lever is None else setting.lever.tries_on(device):
                if value is not None and setting.kind != "env":
                    assert check_value(setting, value, setting.name) == value


def test_cards_that_share_a_setting_share_its_kind() -> None:
    """A command has versions of its own, which may be left to the script."""
    commands = {owner.__name__ for owner in cards.command_cards()}
    for benchmark in cards.names("benchmarks"):
        for name, versions in cards.all_settings(benchmark).items():
            shapes = {(version.kind, version.internal, version.sweep) for version in versions}
            assert len(shapes) == 1, f"{name}: {shapes}"
            optional = {version.optional for version in versions if version.card not in commands}
            assert len(optional) <= 1, f"{name}: {optional}"


def test_the_cards_of_commands_come_last() -> None:
    commands = {owner.__name__ for owner in cards.command_cards()}
    for name, versions in cards.all_settings("train").items():
        owners = [version.card in commands for version in versions]
        assert owners == sorted(owners), name
    assert cards.settings_by_name("train")["pin_memory"].default is False
    assert cards.settings_by_name("train", of_command=True)["pin_memory"].default is None


def test_a_lever_of_a_command_is_that_of_other_jobs() -> None:
    """But for what it needs, when it is tried, and values that most scripts have anyway."""
    own = {"needs", "on_request", "tries", "code"}
    for owner in cards.command_cards():
        for setting in settings_of(owner):
            if setting.lever is not None:
                other = cards.settings_by_name("train")[setting.name]
                assert (setting.help, setting.choices) == (other.help, other.choices)
                assert other.lever is not None and set(setting.lever.tries) <= set(other.lever.tries)
                for field in dataclasses.fields(setting.lever):
                    same = getattr(setting.lever, field.name) == getattr(other.lever, field.name)
                    assert same or field.name in own, (setting.name, field.name)


def test_settings_of_trials_and_options_of_runs_have_names_of_their_own() -> None:
    for benchmark in cards.names("benchmarks"):
        assert not {setting.name for setting in settings_of(Measuring)} & set(cards.all_settings(benchmark))


def test_an_unknown_card_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"^unknown strategy 'dpp'; known: .*; did you mean ddp\?$"):
        cards.card("strategies", "dpp")
    for name in ("../mlp", "mlp.Mlp", "os", "__init__", ""):
        with pytest.raises(BadInput, match=r"^unknown workload"):
            cards.card("workloads", name)


def test_a_trial_is_made_of_placement_benchmark_selection_and_levers() -> None:
    trial_cards = cards.cards_of_trial("train", {"workloads": "mlp", "strategies": "ddp"})
    assert [card.__name__ for card in trial_cards][:4] == ["Placement", "Train", "Mlp", "Ddp"]
    assert trial_cards[4:] == tuple(cards.card("levers", name) for name in cards.names("levers"))
    assert {"Accumulation", "Copying", "Fusion", "MemoryFormat"} <= {
        card.__name__ for card in trial_cards[4:]
    }


def test_help_begins_with_training_and_names_every_card_once() -> None:
    headings = [heading for heading, _ in cards.grouped_settings("train")]
    assert headings[:2] == ["Training", "Placement"]
    assert {"Workload mlp", "Strategy ddp", "Lever precision"} <= set(headings)
    assert len(set(headings)) == len(headings)


def test_a_lever_changes_the_workload_the_step_or_the_input() -> None:
    """A misspelt function would be measured as if it had been applied."""
    for name in cards.names("levers"):
        source = (PACKAGE / "worker" / "levers" / f"{name}.py").read_text()
        functions = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        by_others = not functions and "feeding" in source  # the docstring names what applies it
        assert functions & {"apply", "prepare"} or by_others, name
