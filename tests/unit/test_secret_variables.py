"""Values that are never written: kept for the ranks, marked everywhere else."""

import pytest

from scalescope import secret_variables
from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.expand import expand
from scalescope.experiment.record import to_yaml
from scalescope.inspection import recorded_variables
from scalescope.launch.fake import TWO_CORES
from scalescope.secret_variables import REDACTED, given_values, looks_secret, with_values
from tests.unit.experiment.asking import ask


@pytest.fixture(autouse=True)
def _no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_variables, "_values", {})
    monkeypatch.delenv("API_KEY", raising=False)


def test_a_key_is_kept_for_ranks_and_marked_in_the_request() -> None:
    experiment = ask(env__API_KEY="hunter2", env__NCCL_ALGO="Ring")
    (trial,) = expand(experiment, TWO_CORES).trials
    assert trial.env == {"API_KEY": REDACTED, "NCCL_ALGO": "Ring"}
    assert "hunter2" not in to_yaml(experiment)
    assert with_values(trial.env) == {"API_KEY": "hunter2", "NCCL_ALGO": "Ring"}
    assert given_values() == {"API_KEY": "hunter2"}


def test_trials_are_told_apart_by_the_name_not_by_the_value() -> None:
    ids = {expand(ask(env__API_KEY=value), TWO_CORES).trials[0].trial_id for value in ("one", "other")}
    assert len(ids) == 1
    assert ids != {expand(ask(), TWO_CORES).trials[0].trial_id}


def test_a_stored_request_takes_the_value_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    (trial,) = expand(ask(env__API_KEY=REDACTED), TWO_CORES).trials
    with pytest.raises(CannotRun, match=r"the value of API_KEY was not stored .* add --env API_KEY=VALUE"):
        with_values(trial.env)
    monkeypatch.setenv("API_KEY", "exported")
    assert with_values(trial.env) == {"API_KEY": "exported"}


def test_keys_cannot_be_swept_unless_they_may_be_stored() -> None:
    with pytest.raises(BadInput, match=r"API_KEY looks like a key, .* add --no-redact-env"):
        ask(env__API_KEY="one,other")
    experiment = ask(env__API_KEY="one,other", redact_env="no")
    assert experiment.settings["env"] == ({"API_KEY": "one"}, {"API_KEY": "other"})
    assert "one" in to_yaml(experiment)


@pytest.mark.parametrize(
    "name",
    [
        "API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "HF_TOKEN",
        "GITHUB_TOKEN2",
        "wandb_api_key",
        "DB_PASSWORD",
        "PGPASSWORD",
        "MYSQL_PWD",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "HTTP_AUTH",
        "OPENAIAPIKEY",
        "SSH_PASSPHRASE",
        "NCCL_AUTH_TOKEN",
    ],
)
def test_keys(name: str) -> None:
    assert looks_secret(name)
    assert recorded_variables({name: "x"}) == {}


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "NCCL_ALGO",
        "OMP_NUM_THREADS",
        "PYTHONPATH",
        "CUDA_VISIBLE_DEVICES",
        "KEYBOARD",
        "AUTHOR",
        "COMPASS",
        "MONKEY",
    ],
)
def test_other_names(name: str) -> None:
    assert not looks_secret(name)


def test_variables_are_recorded_by_an_allow_list() -> None:
    environment = {"NCCL_ALGO": "Ring", "NCCL_AUTH_TOKEN": "x", "HOME": "/root", "MY_OWN": "x"}
    assert recorded_variables(environment) == {"NCCL_ALGO": "Ring"}
