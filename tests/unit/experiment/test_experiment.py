"""Requests: flag over file over default, one batch, checked names."""

import re

import pytest

from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput
from scalescope.experiment.experiment import Experiment, build_experiment
from scalescope.experiment.yaml_file import Entries, Given
from tests.builders.requests import ask, flags


def lines(**texts: str) -> Entries:
    """The entries of a file, one key per line."""
    return {
        name: tuple(Given(text, f"e.yaml:{line}: {name}") for text in values.split(","))
        for line, (name, values) in enumerate(texts.items(), start=1)
    }


def build(file: Entries, typed: Entries, **defaults: object) -> Experiment:
    return build_experiment("scale", "train", file, typed, defaults)


def test_a_flag_wins_over_the_file_and_the_file_over_the_verb() -> None:
    file = lines(repeats="3", budget="10m", epochs="2", seed="7")
    built = build(file, flags(repeats="4", epochs="5,6"), repeats=5, budget=90.0, order_seed=11)
    assert built.settings == {"epochs": (5, 6), "seed": (7,)}
    assert (built.measuring.repeats, built.measuring.budget, built.measuring.order_seed) == (4, 600.0, 11)
    assert (built.verb, built.benchmark) == ("scale", "train")


def test_a_setting_that_is_not_given_has_the_default_of_the_card() -> None:
    built = build({}, {})
    assert built.settings == {}
    assert built.measuring == Measuring(
        **{setting.name: setting.default for setting in settings_of(Measuring)}
    )


def test_none_of_a_flag_wins_over_the_default_of_the_verb() -> None:
    assert build({}, flags(budget="none"), budget=90.0).measuring.budget is None


@pytest.mark.parametrize(
    ("typed", "filed"), [("batch_size", "global_batch_size"), ("global_batch_size", "batch_size")]
)
def test_a_batch_flag_replaces_the_other_batch_of_the_file(typed: str, filed: str) -> None:
    assert build(lines(**{filed: "32"}), flags(**{typed: "8,16"})).settings == {typed: (8, 16)}


def test_a_batch_flag_chooses_between_both_of_the_file() -> None:
    built = build(lines(batch_size="32", global_batch_size="64"), flags(global_batch_size="128"))
    assert built.settings == {"global_batch_size": (128,)}


UNSELECTED = [
    ("strategy", "ddp", "fsdp", "reshard_after_forward", "false"),
    ("strategy", "fsdp", "ddp", "bucket_cap_mb", "5"),
    ("workload", "mlp", "paced", "forward_ms", "5"),
    ("workload", "paced", "mlp", "hidden_dim", "64"),
]


@pytest.mark.parametrize(("name", "chosen", "other", "setting", "value"), UNSELECTED)
def test_a_flag_that_selects_leaves_out_what_others_of_the_file_need(
    name: str, chosen: str, other: str, setting: str, value: str
) -> None:
    file = lines(**{name: f"{chosen},{other}", setting: value, "seed": "7"})
    assert set(build(file, {}).settings) == {name, setting, "seed"}
    assert build(file, flags(**{name: chosen})).settings == {name: (chosen,), "seed": (7,)}
    assert setting in build(file, flags(**{name: other})).settings
    assert setting in build(file, flags(**{name: f"{chosen},{other}"})).settings


def test_a_setting_that_was_typed_is_not_left_out() -> None:
    file = lines(strategy="ddp,fsdp", reshard_after_forward="false")
    typed = flags(strategy="ddp", reshard_after_forward="true")
    assert build(file, typed).settings["reshard_after_forward"] == (True,)


def test_a_flag_that_selects_what_the_file_does_not_leaves_the_file_alone() -> None:
    """The file means the default, and what is no setting of the flag's choice is to be refused."""
    assert "forward_ms" in build(lines(forward_ms="5"), flags(workload="mlp")).settings


@pytest.mark.parametrize("given_in", ["file", "flags"])
def test_both_batches_in_one_place_are_refused(given_in: str) -> None:
    both = {"batch_size": "32", "global_batch_size": "64"}
    file, typed = (lines(**both), {}) if given_in == "file" else ({}, flags(**both))
    with pytest.raises(
        BadInput, match=r"global.batch.size: give batch_size .*weak.* or global_batch_size .*strong"
    ):
        build(file, typed)


def test_a_file_entry_is_not_changed_by_a_flag() -> None:
    file = lines(batch_size="32")
    build(file, flags(global_batch_size="64"))
    assert set(file) == {"batch_size"}


@pytest.mark.parametrize("text", ["none", "8,none"])
def test_no_batch_at_all_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--batch-size: batch_size must be a positive integer, got none$"):
        ask(batch_size=text)


@pytest.mark.parametrize("texts", ["0.1,1e-1", "1,2,1.0"])
def test_a_value_given_twice_is_refused_however_it_is_written(texts: str) -> None:
    with pytest.raises(BadInput, match=r"^--lr: .* is given twice$"):
        ask(lr=texts)


def test_env_values_are_a_sweep_of_every_combination() -> None:
    assert ask(env__B="1,2", env__A="x,y").settings["env"] == (
        {"A": "x", "B": "1"},
        {"A": "x", "B": "2"},
        {"A": "y", "B": "1"},
        {"A": "y", "B": "2"},
    )


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=B", "Ä", "A\n", "A" * 129])
def test_env_names_must_be_names(name: str) -> None:
    with pytest.raises(BadInput, match="is not a valid name of an environment variable") as caught:
        build({}, {f"env.{name}": (Given("1", "--env"),)})
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_what_the_launcher_sets_cannot_be_swept(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} cannot be given: the launcher"):
        build({}, {f"env.{name}": (Given("1", f"--env {name}"),)})


@pytest.mark.parametrize(
    ("values", "problem"), [(("1", "1"), "the same value"), (("a\0b",), "NUL character")]
)
def test_env_values_that_cannot_be(values: tuple[str, ...], problem: str) -> None:
    with pytest.raises(BadInput, match=rf"^--env A: A: .*{problem}"):
        build({}, {"env.A": tuple(Given(value, "--env A") for value in values)})


def test_env_lists_are_counted_before_they_are_multiplied_out() -> None:
    """Ten values of each of 20 names would be 10^20 dictionaries."""
    digits = ",".join("0123456789")
    with pytest.raises(BadInput, match="multiply to 100,000,000,000,000,000,000"):
        ask(**{f"env__A{number}": digits for number in range(20)})


@pytest.mark.parametrize("name", ["a", "Run-1.2_x", "0", "a" * 64])
def test_names_of_runs(name: str) -> None:
    assert ask(name=name).measuring.name == name


@pytest.mark.parametrize(
    "name",
    ["../x", "/abs", ".hidden", "-x", "a b", "a;b", "$(x)", "`x`", "<script>", "ü", "a" * 65, "a" * 300],
)
def test_a_name_that_could_be_mistaken_for_something_else_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"^--name: expected 1 to 64 letters, digits, '\.', '_' or '-', got "):
        ask(name=name)


@pytest.mark.parametrize("name", ["a\nb", "\u202ea", "\x1b[31m"])
def test_a_name_of_unprintable_characters_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"^--name: expected a printable word"):
        ask(name=name)


@pytest.mark.parametrize(
    ("key", "hint"),
    [("worldsize", "world_size"), ("warm_up_steps", "warmup_steps"), ("stall_timout", "stall_timeout")],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key: str, hint: str) -> None:
    with pytest.raises(BadInput, match=rf"^e\.yaml:1: unknown key {key}; did you mean {hint}\?$"):
        build(lines(**{key: "1"}), {})


def test_internal_settings_cannot_be_asked_for_and_are_not_suggested() -> None:
    with pytest.raises(BadInput, match=r"^e\.yaml:1: unknown key without_communication$"):
        build(lines(without_communication="false"), {})


@pytest.mark.parametrize("workload", ["auto", "MLP", "mlp "])
def test_workloads_are_named_exactly_or_refused_with_their_place(workload: str) -> None:
    if workload.strip() == "mlp":
        assert ask(workload=workload).settings == {"workload": ("mlp",)}
    else:
        with pytest.raises(
            BadInput, match=rf"^--workload: unknown workload {re.escape(repr(workload))}; known: "
        ):
            ask(workload=workload)


def test_changed_settings_leave_the_request_as_it_was() -> None:
    before = ask(epochs="2", seed="1")
    after = before.with_settings(seed=(5, 6))
    assert before.settings == {"epochs": (2,), "seed": (1,)}
    assert after.settings == {"epochs": (2,), "seed": (5, 6)}


@pytest.mark.parametrize("name", ["steps_per_epoch", "epochs", "eval"])
def test_a_window_and_a_number_of_steps_contradict_each_other(name: str) -> None:
    value = "true" if name == "eval" else "30"
    with pytest.raises(BadInput, match=f"^--window cannot be used with --{name.replace('_', '-')}: "):
        build({}, flags(window="2s", **{name: value}))


def test_a_window_replaces_the_steps_of_a_file() -> None:
    experiment = build(lines(steps_per_epoch="30", epochs="2", eval="true"), flags(window="2s"))
    assert experiment.settings["window"] == (2.0,)
    assert not {"steps_per_epoch", "epochs", "eval"} & set(experiment.settings)


def test_a_verb_may_have_defaults_of_its_own_for_settings() -> None:
    defaults = {"repeats": 3, "window": 10.0}
    experiment = build_experiment("train", "train", {}, {}, defaults)
    assert (experiment.measuring.repeats, experiment.settings["window"]) == (3, (10.0,))
    assert build_experiment("train", "train", {}, flags(window="1s"), defaults).settings["window"] == (1.0,)


def test_a_list_that_is_too_long_is_refused_before_its_values_are_read() -> None:
    with pytest.raises(BadInput, match="--hidden-dim: the list has more than 20,000 values"):
        build({}, flags(hidden_dim=",".join(["x"] * 20_001)))
