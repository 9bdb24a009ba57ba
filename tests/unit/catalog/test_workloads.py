"""Cards of workloads: their arithmetic, their defaults and what they refuse without running it."""

from pathlib import Path
from typing import Any

import pytest

from scalescope.catalog import cards
from scalescope.catalog.setting import settings_of
from scalescope.catalog.workloads.custom import Custom
from scalescope.catalog.workloads.mlp import Mlp
from scalescope.catalog.workloads.paced import Paced
from scalescope.catalog.workloads.transformer import Transformer
from scalescope.errors import BadInput
from scalescope.experiment.expand import expand
from scalescope.experiment.trial import Trial
from tests.builders.requests import ask, with_gpus
from tests.builders.results import make_trial
from tests.simulated.launcher import TWO_CORES

# mlp


def test_flops_count_no_input_gradient_for_the_first_layer() -> None:
    card = Mlp(input_dim=2, hidden_dim=3, num_layers=2, output_dim=5)
    assert card.layer_widths == ((2, 3), (3, 3), (3, 5))
    # Weights 6, 9 and 15: two operations forward and four backward each, less two for the first.
    assert card.flops_per_sample() == 6 * (6 + 9 + 15) - 2 * 6


# paced


MIB = 2**20


def paced(**changes: Any) -> Paced:
    values = {setting.name: setting.default_for("cpu") for setting in settings_of(Paced)}
    return Paced(**{**values, **changes})


def layer_bytes(card: Paced) -> list[int]:
    return [4 * elements for elements in card.layer_elements]


def test_the_first_layer_alone_may_be_larger() -> None:
    assert layer_bytes(paced(layers=3, layer_mb=2.0)) == [2 * MIB] * 3
    assert layer_bytes(paced(layers=3, layer_mb=1.0, first_layer_mb=40.0)) == [40 * MIB, MIB, MIB]
    assert layer_bytes(paced(layers=1, layer_mb=1.0, first_layer_mb=0.5)) == [MIB // 2]
    plain, giant = paced(layers=4), paced(layers=4, first_layer_mb=40.0)
    assert giant.gradient_ready_s == plain.gradient_ready_s
    assert giant.least_step_s() == plain.least_step_s()


def test_the_first_layer_is_as_large_as_the_others_unless_its_size_is_given() -> None:
    assert make_trial(workload="paced", first_layer_mb="same").settings["first_layer_mb"] is None
    assert make_trial(workload="paced", first_layer_mb="40").settings["first_layer_mb"] == 40.0


# transformer


def card(**changes: object) -> Transformer:
    small = {
        "d_model": 8,
        "n_heads": 2,
        "num_layers": 3,
        "dim_feedforward": 5,
        "max_seq_len": 7,
        "vocab_size": 11,
        "dropout": 0.0,
        "task": "classification",
        "num_classes": None,
    }
    return Transformer(**{**small, **changes})


def only_trial(**texts: str) -> Trial:
    (trial,) = expand(ask(workload="transformer", **texts), TWO_CORES).trials
    return trial


def test_flops_and_tokens_of_a_sample() -> None:
    # Weights 4·64 + 2·40 a token, attention 12·49·8, a head of 8 × 4 on one pooled vector.
    block = 6 * 7 * (4 * 64 + 2 * 40) + 12 * 49 * 8
    assert card().flops_per_sample() == 3 * block + 6 * 8 * 4
    assert card(num_classes=2).flops_per_sample() == 3 * block + 6 * 8 * 2
    assert card(task="next_token").flops_per_sample() == 3 * block + 6 * 7 * 8 * 11
    assert card().tokens_per_sample() == 7


def test_defaults_fit_the_device_and_the_workload() -> None:
    settings = only_trial().settings
    shape = [settings[name] for name in ("d_model", "n_heads", "num_layers", "dim_feedforward")]
    assert shape == [128, 4, 2, 256]
    assert (settings["max_seq_len"], settings["vocab_size"], settings["batch_size"]) == (128, 20_000, 32)
    (trial,) = expand(ask(workload="transformer"), with_gpus(1)).trials
    assert (trial.settings["d_model"], trial.settings["max_seq_len"]) == (768, 1024)
    assert trial.settings["batch_size"] == 32
    (trial,) = expand(ask(workload="mlp"), TWO_CORES).trials
    assert trial.settings["num_layers"] == 6


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"d_model": "130"}, r"^d_model must be divisible by n_heads 4, got 130; use 128$"),
        ({"d_model": "3"}, r"; use 4$"),
        ({"task": "classify"}, r"must be one of classification, next_token"),
        (
            {"workload": "mlp", "data": "imdb"},
            r"workload mlp cannot use data imdb; .*synthetic; --workload transformer can use imdb",
        ),
    ],
)
def test_what_does_not_fit_is_refused(texts: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        expand(ask(**{"workload": "transformer", **texts}), TWO_CORES)


# own workloads


_SEVERAL = """
class Buildl:
    def other(self): pass

def build(rank, *, device, size=3): pass

def small(batch_size=1): pass

def helper(path): pass

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.py:build", r"nowhere.py: No such file or directory$"),
        ("mine.py:", r"'' is not a function name; expected FILE.py:FUNCTION$"),
        ("mine.py:a-b", r"'a-b' is not a function name"),
        ("a/b:build", r"'a/b' is neither a FILE.py nor a module name$"),
        ("mine.py:biuld", r"mine.py has no function biuld; did you mean build\? \(.*: build, small\)$"),
        ("mine.py:other", r"mine.py has no function other; .*: build, small$"),
        ("mine.py:main", r"mine.py has no function main; "),
        ("empty.py:build", r"empty.py has no function build; .*: none$"),
        ("torn.py:build", r"^torn.py:2: invalid syntax: def build\(:$"),
    ],
)
def test_what_can_be_seen_without_running_is_refused_before_the_launch(reference: str, message: str) -> None:
    Path("mine.py").write_text(_SEVERAL)
    Path("empty.py").write_text("")
    Path("torn.py").write_text("import torch\ndef build(:\n    pass\n")
    card = cards.card("workloads", reference)
    assert card is Custom
    with pytest.raises(BadInput, match=message):
        card.check_name(reference)


@pytest.mark.usefixtures("here")
def test_a_function_that_may_be_there_is_left_to_the_ranks() -> None:
    for source in ("build = 5", "from x import build", "from x import *", "if 1:\n  def build(): 0"):
        Path("mine.py").write_text(source)
        Custom.check_name("mine.py:build")
