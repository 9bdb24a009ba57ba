"""The experiment file a run leaves behind repeats that run."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scalescope.catalog import cards
from scalescope.catalog.collectives import COLLECTIVES
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import Setting, settings_of
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import RUN_NAME, Experiment, build_experiment
from scalescope.experiment.given import Entries, Given
from scalescope.experiment.machine import Machine
from scalescope.experiment.record import to_yaml
from scalescope.experiment.yaml_file import read_experiment_file
from tests.builders.requests import ask, with_gpus
from tests.simulated.launcher import TWO_CORES

NAMES = {
    "workload": cards.known_names("workloads"),
    "data": cards.names("data"),
    "data_dir": ("data", "/somewhere/my data", "~/data: all, of it"),
    "strategy": ("auto", *cards.known_names("strategies")),
    "collective": ("all", "all_reduce,broadcast", *tuple(COLLECTIVES)),
}
BATCHES = ("batch_size", "global_batch_size")
WORDS_FOR_NONE = ("none", "null")
OPTIONS = {option.name: option for option in settings_of(Measuring)}
BENCHMARKS = cards.names("benchmarks")


def public_settings(benchmark: str) -> dict[str, Setting]:
    """Every setting of a benchmark that a person may give, but for the environment and for commands."""
    commands = {owner.__name__ for owner in cards.command_cards()}
    return {
        name: versions[0]
        for name, versions in cards.all_settings(benchmark).items()
        if not versions[0].internal and versions[0].kind != "env" and versions[0].card not in commands
    }


def texts_of(setting: Setting) -> st.SearchStrategy[str]:
    """Any value of a setting as a person may write it."""
    words = NAMES.get(setting.name, setting.choices)
    low, high = setting.low, 1e20 if setting.high is None else setting.high
    if setting.kind == "bool":
        texts: st.SearchStrategy[str] = st.sampled_from(("true", "false"))
    elif setting.name == "name":
        texts = st.from_regex(RUN_NAME, fullmatch=True).filter(
            lambda text: text.lower() not in WORDS_FOR_NONE
        )
    elif setting.kind == "str":
        assert words, f"{setting.name}: what may it be?"
        texts = st.sampled_from(words)
    elif setting.kind == "link":
        rates = st.builds("{}{}bit".format, st.integers(1, 999), st.sampled_from("mg"))
        each = st.lists(rates, min_size=2, max_size=4)
        texts = rates | each.map(lambda all_: ",".join(f"{n}:{rate}" for n, rate in enumerate(all_)))
    elif setting.kind in ("int", "bytes"):
        assert low is not None
        texts = st.integers(int(low), int(high)).map(str)
    else:
        texts = st.floats(low, high).map(repr)
    return texts


def values_of(setting: Setting) -> st.SearchStrategy[list[str]]:
    """One value or a sweep; None stands in sweeps only, where leaving the key out means something else."""
    most = 4 if setting.sweep else 1
    several = st.lists(texts_of(setting), min_size=1, max_size=most, unique_by=lambda text: text.lower())
    if setting.optional and setting.name != "batch_size":
        return several | several.map(lambda texts: [*texts, setting.none_word])
    return several


VARIABLES = st.dictionaries(
    st.from_regex("X[A-Za-z0-9_]{0,5}", fullmatch=True),
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
        min_size=1,
        max_size=3,
        unique=True,
    ),
    max_size=3,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, Entries]:
    """A benchmark and flags of any of its settings: values, sweeps, variables and options of the run."""
    benchmark = draw(st.sampled_from(BENCHMARKS))
    known = public_settings(benchmark)
    texts: dict[str, list[str]] = {}
    for name in draw(st.sets(st.sampled_from(sorted(known)), max_size=6)):
        texts[name] = draw(values_of(known[name]))
    if set(BATCHES) <= set(texts):
        del texts[draw(st.sampled_from(BATCHES))]
    if {"steps_per_epoch", "epochs", "eval"} & set(texts):
        texts.pop("window", None)
    for name, values in draw(VARIABLES).items():
        texts[f"env.{name}"] = values
    for option in OPTIONS.values():
        if option.name != "output_dir" and draw(st.booleans()):
            none = [option.none_word] if option.optional and draw(st.booleans()) else []
            texts[option.name] = none or [draw(texts_of(option))]
    flags = {name: tuple(Given(text, f"--{name}") for text in values) for name, values in texts.items()}
    return benchmark, flags


def reread(text: str, path: Path, benchmark: str = "train", **defaults: Any) -> Experiment:
    path.write_bytes(text.encode())
    return build_experiment("train", benchmark, read_experiment_file(path), {}, defaults)


def env_of(*values: str) -> tuple[str, Entries]:
    return "train", {"env.X": tuple(Given(value, "--env X") for value in values)}


def given_one(benchmark: str, name: str, *texts: str) -> tuple[str, Entries]:
    return benchmark, {name: tuple(Given(text, f"--{name}") for text in texts)}


@given(requests())
@example(env_of("a\nb", " a ", "---\nx: 1", "\x85\u2028", "\ufeff", "#", "'\"\\", "", "\U0001f600"))
@example(env_of("word " * 5000))
@example(given_one("train", "budget", "99999999999999999999"))
@example(given_one("train", "name", "0777"))
@example(given_one("train", "link", "1:100mbit,0:1gbit", "2.5gbit", "none"))
@example(given_one("comm", "max_bytes", "64K", "1GiB", "8"))
@settings(max_examples=30)
def test_a_request_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, asking: tuple[str, Entries]
) -> None:
    """Also where the verb that reads it has other defaults for the run."""
    benchmark, flags = asking
    asked = build_experiment("train", benchmark, {}, flags, {})
    text = to_yaml(asked)
    path = tmp_path_factory.getbasetemp() / "e.yaml"
    reread_request = reread(text, path, benchmark, repeats=7, budget=90.0, stall_timeout=1.0)
    assert reread_request.settings == asked.settings
    assert reread_request.measuring == asked.measuring
    assert to_yaml(reread_request) == text
    keys = [line.partition(":")[0] for line in text.splitlines()[1:]]
    assert keys == sorted(set(keys))  # every value on the line of its key


@pytest.mark.parametrize("machine", [TWO_CORES, with_gpus(2)], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    "texts",
    [
        {"world_size": "1,2", "batch_size": "8,16"},
        {"global_batch_size": "none,64"},
        {"world_size": "2", "bucket_cap_mb": "none,1e-3", "static_graph": "false,true"},
        {"device": "auto,cpu"},
        {"strategy": "auto,ddp", "world_size": "1,2"},
        {"threads_per_rank": "auto,1"},
        {"env__OMP_NUM_THREADS": "1,2"},
        {"env__A": "x,y", "env__B": "1"},
        {"lr": "1e-5", "budget": "none", "name": "no"},
    ],
    ids=str,
)
def test_the_filled_file_makes_the_same_trials_again(
    texts: dict[str, str], machine: Machine, tmp_path: Path
) -> None:
    first = expand(ask(**texts), machine)
    text = to_yaml(first.experiment)
    again = expand(reread(text, tmp_path / "e.yaml"), machine)
    assert {trial.trial_id for trial in again.trials} == {trial.trial_id for trial in first.trials}
    assert to_yaml(again.experiment) == text


def test_a_repeat_gets_a_folder_of_its_own() -> None:
    assert "output_dir" not in to_yaml(ask(output_dir="runs/here", epochs="2"))


def test_the_file_has_plain_sorted_lines_and_its_usage() -> None:
    limits = {name: option.default for name, option in OPTIONS.items() if name.endswith("_timeout")}
    text = to_yaml(ask(world_size="1,2", epochs="3", env__A="x,y", bucket_cap_mb="none", name="first"))
    assert text == (
        "# scalescope train FILE repeats this run.\n"
        "allow_oom: false\n"
        "bucket_cap_mb: null\n"
        "budget: null\n"
        "end_timeout: 1.0\n"
        "env: {A: [x, y]}\n"
        "epochs: 3\n"
        f"init_timeout: {limits['init_timeout']}\n"
        "name: first\n"
        "order_seed: 0\n"
        "redact_env: true\n"
        "repeat_disturbed: true\n"
        "repeats: 1\n"
        "stall_timeout: null\n"
        f"teardown_timeout: {limits['teardown_timeout']}\n"
        f"warmup_timeout: {limits['warmup_timeout']}\n"
        "world_size: [1, 2]\n"
    )
