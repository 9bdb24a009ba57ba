"""The `transformer` card: its arithmetic, its defaults and what it refuses."""

import pytest

from scalescope.catalog.workloads.transformer import Transformer
from scalescope.errors import BadInput
from scalescope.experiment.expand import expand
from scalescope.experiment.trial import Trial
from scalescope.launch.fake import TWO_CORES
from tests.builders.requests import ask, with_gpus


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


def test_flops_of_a_classification() -> None:
    """Weights 4·64 + 2·40 a token, attention 12·49·8, a head of 8 × 4 on one pooled vector."""
    block = 6 * 7 * (4 * 64 + 2 * 40) + 12 * 49 * 8
    assert card().flops_per_sample() == 3 * block + 6 * 8 * 4
    assert card(num_classes=2).flops_per_sample() == 3 * block + 6 * 8 * 2


def test_flops_of_next_tokens_count_the_vocabulary_at_every_position() -> None:
    block = 6 * 7 * (4 * 64 + 2 * 40) + 12 * 49 * 8
    assert card(task="next_token").flops_per_sample() == 3 * block + 6 * 7 * 8 * 11


def test_a_sample_has_as_many_tokens_as_its_length() -> None:
    assert card().tokens_per_sample() == 7


def test_defaults_fit_the_device() -> None:
    settings = only_trial().settings
    shape = [settings[name] for name in ("d_model", "n_heads", "num_layers", "dim_feedforward")]
    assert shape == [128, 4, 2, 256]
    assert (settings["max_seq_len"], settings["vocab_size"], settings["batch_size"]) == (128, 20_000, 32)
    (trial,) = expand(ask(workload="transformer"), with_gpus(1)).trials
    assert (trial.settings["d_model"], trial.settings["max_seq_len"]) == (768, 1024)
    assert trial.settings["batch_size"] == 32


def test_layers_of_the_mlp_keep_their_own_default() -> None:
    (trial,) = expand(ask(workload="mlp"), TWO_CORES).trials
    assert trial.settings["num_layers"] == 6


def test_heads_must_share_the_width() -> None:
    with pytest.raises(BadInput, match=r"^d_model must be divisible by n_heads 4, got 130; use 128$"):
        only_trial(d_model="130")


def test_more_heads_than_width_names_the_least_width() -> None:
    with pytest.raises(BadInput, match=r"; use 4$"):
        only_trial(d_model="3")


@pytest.mark.parametrize("task", ["classify", "next-token"])
def test_an_unknown_task_is_refused(task: str) -> None:
    with pytest.raises(BadInput, match=r"must be one of classification, next_token"):
        ask(workload="transformer", task=task)


def test_the_mlp_reads_no_text() -> None:
    with pytest.raises(
        BadInput, match=r"workload mlp cannot use data imdb; .*synthetic; --workload transformer can use imdb"
    ):
        expand(ask(workload="mlp", data="imdb"), TWO_CORES)
