"""Requests: flag over file over default, one batch, checked names."""

import pytest

from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput
from scalescope.experiment.experiment import Experiment, build_experiment
from scalescope.experiment.given import Entries, Given
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


def test_a_setting_that_is_not_given_has_the_default_of_the_verb_or_the_card() -> None:
    built = build({}, {})
    assert built.settings == {}
    assert built.measuring == Measuring(
        **{setting.name: setting.default for setting in settings_of(Measuring)}
    )
    assert build({}, flags(budget="none"), budget=90.0).measuring.budget is None
    defaults = {"repeats": 3, "window": 10.0}
    experiment = build_experiment("train", "train", {}, {}, defaults)
    assert (experiment.measuring.repeats, experiment.settings["window"]) == (3, (10.0,))
    assert build_experiment("train", "train", {}, flags(window="1s"), defaults).settings["window"] == (1.0,)


def test_a_batch_flag_replaces_the_other_batch_of_the_file() -> None:
    for typed, filed in (("batch_size", "global_batch_size"), ("global_batch_size", "batch_size")):
        file = lines(**{filed: "32"})
        assert build(file, flags(**{typed: "8,16"})).settings == {typed: (8, 16)}
        assert set(file) == {filed}
    both = lines(batch_size="32", global_batch_size="64")
    assert build(both, flags(global_batch_size="128")).settings == {"global_batch_size": (128,)}
    for file, typed_both in ((both, {}), ({}, flags(batch_size="32", global_batch_size="64"))):
        with pytest.raises(
            BadInput,
            match=r"global.batch.size: give either batch_size .*weak.* or global_batch_size .*strong",
        ):
            build(file, typed_both)


UNSELECTED = [
    ("strategy", "ddp", "fsdp", "reshard_after_forward", "false"),
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


def test_a_setting_that_was_typed_or_is_alone_in_the_file_is_not_left_out() -> None:
    file = lines(strategy="ddp,fsdp", reshard_after_forward="false")
    typed = flags(strategy="ddp", reshard_after_forward="true")
    assert build(file, typed).settings["reshard_after_forward"] == (True,)
    # The file means the default, and what is no setting of the flag's choice is to be refused.
    assert "forward_ms" in build(lines(forward_ms="5"), flags(workload="mlp")).settings


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"batch_size": "8,none"}, r"^--batch-size: batch_size must be a positive integer, got none$"),
        ({"lr": "0.1,1e-1"}, r"^--lr: .* is given twice$"),
        ({"lr": "1,2,1.0"}, r"^--lr: .* is given twice$"),
        ({"name": "\x1b[31m"}, r"^--name: expected a printable word"),
        ({"hidden_dim": ",".join(["x"] * 20_001)}, "--hidden-dim: the list has more than 20,000 values"),
    ],
    ids=["no batch", "twice", "twice in another form", "name", "long list"],
)
def test_values_that_cannot_be_are_refused(texts: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ask(**texts)


def test_env_values_are_a_sweep_of_every_combination() -> None:
    assert ask(env__B="1,2", env__A="x,y").settings["env"] == (
        {"A": "x", "B": "1"},
        {"A": "x", "B": "2"},
        {"A": "y", "B": "1"},
        {"A": "y", "B": "2"},
    )
    # Ten values of each of 20 names would be 10^20 dictionaries.
    digits = ",".join("0123456789")
    with pytest.raises(BadInput, match="combine to 100,000,000,000,000,000,000"):
        ask(**{f"env__A{number}": digits for number in range(20)})


def test_env_names_must_be_names_that_the_launcher_does_not_set() -> None:
    for name in ("", "1A", "A B", "A=B", "Ä", "A\n", "A" * 129):
        with pytest.raises(BadInput, match="is not a valid name of an environment variable") as caught:
            build({}, {f"env.{name}": (Given("1", "--env"),)})
        assert str(caught.value).isprintable()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        with pytest.raises(BadInput, match=f"{name} cannot be given: the launcher"):
            build({}, {f"env.{name}": (Given("1", f"--env {name}"),)})
    for values, problem in ((("1", "1"), "the same value"), (("a\0b",), "NUL character")):
        with pytest.raises(BadInput, match=rf"^--env A: A: .*{problem}"):
            build({}, {"env.A": tuple(Given(value, "--env A") for value in values)})


def test_names_of_runs_could_not_be_mistaken_for_something_else() -> None:
    for name in ("a", "Run-1.2_x", "0", "a" * 64):
        assert ask(name=name).measuring.name == name
    for name in ("../x", "/abs", ".hidden", "-x", "a b", "a;b", "$(x)", "<script>", "ü", "a" * 65):
        with pytest.raises(
            BadInput, match=r"^--name: expected 1 to 64 letters, digits, '\.', '_' or '-', got "
        ):
            ask(name=name)


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    for key, hint in (("worldsize", "world_size"), ("stall_timout", "stall_timeout")):
        with pytest.raises(BadInput, match=rf"^e\.yaml:1: unknown key {key}; did you mean {hint}\?$"):
            build(lines(**{key: "1"}), {})
    with pytest.raises(BadInput, match=r"^e\.yaml:1: unknown key without_communication$"):
        build(lines(without_communication="false"), {})


def test_workloads_are_named_exactly_or_refused_with_their_place() -> None:
    assert ask(workload="mlp ").settings == {"workload": ("mlp",)}
    for workload in ("auto", "MLP"):
        with pytest.raises(BadInput, match=rf"^--workload: unknown workload '{workload}'; known: "):
            ask(workload=workload)


def test_changed_settings_leave_the_request_as_it_was() -> None:
    before = ask(epochs="2", seed="1")
    after = before.with_settings(seed=(5, 6))
    assert before.settings == {"epochs": (2,), "seed": (1,)}
    assert after.settings == {"epochs": (2,), "seed": (5, 6)}


def test_a_window_and_a_number_of_steps_contradict_each_other() -> None:
    for name, value in (("steps_per_epoch", "30"), ("epochs", "30"), ("eval", "true")):
        with pytest.raises(BadInput, match=f"^--window cannot be used with --{name.replace('_', '-')}: "):
            build({}, flags(window="2s", **{name: value}))
    experiment = build(lines(steps_per_epoch="30", epochs="2", eval="true"), flags(window="2s"))
    assert experiment.settings["window"] == (2.0,)
    assert not {"steps_per_epoch", "epochs", "eval"} & set(experiment.settings)
