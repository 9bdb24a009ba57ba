"""Flags are made from the cards, and what is typed becomes the same entries as a file's lines."""

from typing import ClassVar

import click
import pytest

from scalescope.catalog import cards
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import settings_of
from scalescope.cli.options import MeasuringCommand, given_flags, measuring_verb
from scalescope.experiment.given import Entries, Given
from scalescope.studies.study import Study


class Example(Study):
    """A study with defaults."""

    verb = "example"
    defaults: ClassVar[dict[str, object]] = {"repeats": 3, "budget": 90.0}


@measuring_verb(Example)
@click.option("--own", help="An option of this verb alone.")
def example(**arguments: object) -> None:
    """An example."""


def typed(*arguments: str) -> Entries:
    return given_flags(example.make_context("example", list(arguments)))


def help_of(name: str) -> str:
    (option,) = [param for param in example.params if param.name == name]
    assert isinstance(option, click.Option)
    assert option.help is not None
    return option.help


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("", {}),
        ("--world-size 1,2", {"world_size": (Given("1", "--world-size"), Given("2", "--world-size"))}),
        ("--output-dir a,b", {"output_dir": (Given("a,b", "--output-dir"),)}),  # it cannot be swept
        ("--static-graph", {"static_graph": (Given("true", "--static-graph"),)}),
        ("--no-static-graph", {"static_graph": (Given("false", "--static-graph"),)}),
        ("--nproc-per-node 2", {"world_size": (Given("2", "--world-size"),)}),
        ("--amp", {"precision": (Given("bf16", "--amp"),)}),
        (
            "--env A=1,2 --env A=3 --env B==x --env C=",
            {
                "env.A": (Given("1,2", "--env A"), Given("3", "--env A")),
                "env.B": (Given("=x", "--env B"),),
                "env.C": (Given("", "--env C"),),
            },
        ),
        ("--resume --dry-run --strict --yes -v --own x e.yaml", {}),
    ],
)
def test_flags_become_entries(words: str, given: Entries) -> None:
    assert typed(*words.split()) == given


def test_a_short_form_cannot_stand_beside_its_setting() -> None:
    with pytest.raises(
        click.UsageError, match="--amp is the same as --precision bf16; give only one of them"
    ):
        typed("--amp", "--precision", "fp16")


def test_every_setting_is_one_flag() -> None:
    options = [param.name for param in example.params]
    assert len(set(options)) == len(options)
    flags = [flag for param in example.params for flag in (*param.opts, *param.secondary_opts)]
    assert len(set(flags)) == len(flags)
    public = {name for name, versions in cards.all_settings("train").items() if not versions[0].internal}
    assert public | {setting.name for setting in settings_of(Measuring)} <= set(options)
    assert "without_communication" not in options


def test_help_describes_the_default() -> None:
    assert help_of("repeats").endswith("[default: 3]")  # the verb's own
    assert help_of("budget").endswith("[default: 90s]")
    assert help_of("threads_per_rank").endswith("[default: auto]")
    assert help_of("global_batch_size").endswith("(strong scaling).")  # none: not shown
    assert help_of("oversubscribe").endswith("[default: off]")
    assert help_of("static_graph").endswith(  # a workload starts elsewhere
        "[default: on; off with your own workload; the script's value with a command]"
    )
    assert help_of("compile").endswith("[default: none]")
    (batch,) = cards.all_settings("train")["batch_size"]
    on_cpu, on_gpu = batch.default_for("cpu"), batch.default_for("cuda")
    assert f"[default: {on_cpu} on CPU, {on_gpu} on GPU; " in help_of("batch_size")
    assert "; 32 on CPU, 256 on GPU with cnn; 32 with your own workload;" in help_of("batch_size")


def test_help_names_the_values_of_a_flag() -> None:
    assert isinstance(example, MeasuringCommand)
    text = " ".join(example.full_page(click.Context(example)).split())
    assert "--world-size, --nproc-per-node INT[,...]" in text
    assert "--backend gloo|nccl|auto[,...]" in text
    assert "--budget TIME " in text
    assert "--env NAME=VALUE" in text
    assert "--static-graph / --no-static-graph" in text
