"""Values that are never written: kept for the ranks, marked everywhere else."""

import shlex
from pathlib import Path

import pytest

from scalescope import secret_variables
from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.command_line import filled_words
from scalescope.experiment.expand import expand
from scalescope.experiment.record import to_yaml
from scalescope.inspection import recorded_variables
from scalescope.secret_variables import (
    REDACTED,
    given_values,
    hidden,
    hide_in,
    looks_secret,
    redacted_words,
    with_secrets,
    with_values,
)
from tests.builders.requests import ask
from tests.simulated.launcher import TWO_CORES


@pytest.fixture(autouse=True)
def _no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_variables, "_values", {})
    monkeypatch.setattr(secret_variables, "_seen", set())
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


_KEYS = (
    *("API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "GITHUB_TOKEN2", "wandb_api_key"),
    *("DB_PASSWORD", "PGPASSWORD", "MYSQL_PWD", "GOOGLE_APPLICATION_CREDENTIALS", "HTTP_AUTH"),
    *("OPENAIAPIKEY", "SSH_PASSPHRASE", "NCCL_AUTH_TOKEN"),
)
_OTHER_NAMES = (
    *("TOKENIZERS_PARALLELISM", "NCCL_ALGO", "OMP_NUM_THREADS", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"),
    *("KEYBOARD", "AUTHOR", "COMPASS", "MONKEY"),
)


def test_keys_are_known_by_their_names() -> None:
    assert tuple(filter(looks_secret, (*_KEYS, *_OTHER_NAMES))) == _KEYS
    assert recorded_variables(dict.fromkeys(_KEYS, "x")) == {}


# Made up here, so that no scanner takes this file for a leak.
_RANDOM = "aB3" + "dE5fG7hJ9kL2mN4pQ6rS8tU1vW3xY5zA"
_PASSWORD = "pw-4e1c9"
_SECRET_WORDS = {
    # By the name of an option or a key.
    "--token hunter2": "TOKEN",
    "--token=hunter2": "TOKEN",
    "--hf-token hunter2": "HF_TOKEN",
    "--api-key=abc": "API_KEY",
    "--api_key abc": "API_KEY",
    "--apiKey abc": "API_KEY",
    "--accessToken abc": "ACCESS_TOKEN",
    "--password correct-horse": "PASSWORD",
    "'--password=correct horse'": "PASSWORD",
    "--client-secret abc": "CLIENT_SECRET",
    "--auth user:abc": "AUTH",
    "--wandb-key 0123456789abcdef0123456789abcdef01234567": "WANDB_KEY",
    "env WANDB_API_KEY=abc": "WANDB_API_KEY",
    "+logger.api_key=abc": "LOGGER_API_KEY",
    "logger.password=abc": "LOGGER_PASSWORD",
    "'https://h/x?token=abcd&page=2'": "TOKEN",
    "-H 'Authorization: Bearer abc.def'": "AUTHORIZATION",
    """--config '{"api_key": "abc"}'""": "API_KEY",
    "bash -c 'python train.py --token hunter2 --lr 0.1'": "TOKEN",
    # By its value.
    f"--hub hf_{_RANDOM}": "HUB",
    f"hf_{_RANDOM}": "ARGUMENT",
    f"--to=ghp_{_RANDOM}": "TO",
    f"--to github_pat_{_RANDOM}": "TO",
    f"--to glpat-{_RANDOM}": "TO",
    f"--to sk-{_RANDOM}": "TO",
    f"--to sk-ant-api03-{_RANDOM}": "TO",
    f"--to xoxb-1234567890-{_RANDOM}": "TO",
    "--to AKIA" + "Q3EGSUV5ZK7XW2MN": "TO",
    f"--to AIza{_RANDOM}": "TO",
    "--to eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def_ghi": "TO",
    f"--to {_RANDOM}": "TO",
    "--to wJalrXUtnFEMI/K7MDENG/bPxRfiCYz3XaMPL7kY": "TO",
    f"--db postgres://u:{_PASSWORD}@h/db": "DB",
    f"--db=postgres://u:{_PASSWORD}@h/db": "DB",
    f"--proxy http://u:{_PASSWORD}@proxy:3128": "PROXY",
    f"--proxy u:{_PASSWORD}@proxy:3128": "PROXY",
    f"redis://:{_PASSWORD}@h": "ARGUMENT",
}
_PLAIN_WORDS = (
    "--revision 0123456789abcdef0123456789abcdef01234567",  # of git
    "--digest=sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "--run 123e4567-e89b-12d3-a456-426614174000",
    "--lr 3e-4",
    "--num-token 128",
    "--max-tokens 2048",
    "--token-dropout 0.1",
    "--eos-token '</s>'",
    "--stop-token END",
    "--pad-token '[PAD]'",
    "--tokenizer bert-base-uncased",
    "--image-key image",
    "--key-dim 64",
    "--sort-key name",
    "--password-file /run/pw",
    "--api-key-env OPENAI",
    "--token '{token}'",
    "--token '$HF_TOKEN'",
    "--use-auth-token true",
    "--mounts '$PWD:/w'",
    "--model meta-llama/Llama-3.1-8B-Instruct",
    "--model sk-learn-pipeline-version-2",
    "--data /mnt/SharedStorage/ImageNet2012/TrainingShards/Part00017",
    "--data datasets/ImageNet2012/Run7/ModelA/Step100x",
    "--out checkpoints/GPT2Medium24Layers16HeadsContext1024/final",
    "--class MyVeryLongTrainerWithCustomSchedulerAndMixedPrecision2",
    "-m package.subpackage.module_with_a_long_name",
    "--url https://huggingface.co/datasets/x?page=2",
    "--endpoint tcp://host:29500",
    "--mail me@example.org",
    "--repo git@github.com:user/repo.git",
    "--repo ssh://git@github.com/user/repo.git",
    "--image pytorch:2.9@sha256:ab12",
    "--flags 0000000000000000000000000000000000000000",
    "--db postgres://u:{password}@h/db",
)


@pytest.mark.parametrize(("text", "name"), _SECRET_WORDS.items())
def test_a_secret_of_a_command_becomes_a_mark_and_comes_back(text: str, name: str) -> None:
    words = shlex.split(f"python train.py {text} --steps 3")
    shown = redacted_words(words)
    assert shown != words
    assert list(given_values()) == [f"SCALESCOPE_SECRET_{name}"]
    (value,) = given_values().values()
    assert value not in " ".join(shown)
    assert [with_secrets(word) for word in shown] == words
    assert redacted_words(shown) == shown


def test_what_is_not_a_secret_stays_as_it_is() -> None:
    lines = [f"torchrun --nproc-per-node={{world_size}} train.py {text} --steps 3" for text in _PLAIN_WORDS]
    assert [line for line in lines if redacted_words(shlex.split(line)) != shlex.split(line)] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", f"postgres://u:{_PASSWORD}@h"),
        ("https_proxy", f"http://u:{_PASSWORD}@proxy:3128"),
        ("AUTHORIZATION", "Basic abc"),
        ("ANY", f"hf_{_RANDOM}"),
        ("NCCL_ANY", _RANDOM),
    ],
)
def test_a_variable_is_known_by_its_value_too(name: str, value: str) -> None:
    assert ask(**{f"env__{name}": value}).settings["env"] == ({name: REDACTED},)
    assert with_values({name: REDACTED}) == {name: value}
    assert recorded_variables({name: value}) == {}


def test_only_the_password_of_a_url_is_marked_in_a_command() -> None:
    assert redacted_words(["--db", f"postgres://u:{_PASSWORD}@h/db"])[1] == (
        "postgres://u:{SCALESCOPE_SECRET_DB}@h/db"
    )


def test_two_secrets_under_one_name_have_marks_of_their_own() -> None:
    first, second, again = "--token=one-one", "--token=two-two", "--token=one-one"
    assert redacted_words([first, second, again]) == [
        "--token={SCALESCOPE_SECRET_TOKEN}",
        "--token={SCALESCOPE_SECRET_TOKEN_2}",
        "--token={SCALESCOPE_SECRET_TOKEN}",
    ]


def test_a_stored_command_takes_its_secrets_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "python t.py --token {token} --api-key=k-123456"
    experiment = ask(command=command, vary__token="hunter22")
    (trial,) = expand(experiment, TWO_CORES).trials
    assert filled_words(trial)[2:] == ["--token", "hunter22", "--api-key=k-123456"]
    assert "hunter22" not in to_yaml(experiment) and "k-123456" not in to_yaml(experiment)
    other = ask(command=command.replace("k-123456", "k-654321"), vary__token="hunter33")
    assert expand(other, TWO_CORES).trials[0].trial_id == trial.trial_id
    monkeypatch.setattr(secret_variables, "_values", {})
    with pytest.raises(
        CannotRun, match=r"SCALESCOPE_SECRET_VARY_TOKEN was not stored .* set SCALESCOPE_SECRET"
    ):
        filled_words(trial)
    monkeypatch.setenv("SCALESCOPE_SECRET_VARY_TOKEN", "{world_size}")  # not filled in again
    monkeypatch.setenv("SCALESCOPE_SECRET_API_KEY", "b")
    assert filled_words(trial)[2:] == ["--token", "{world_size}", "--api-key=b"]


def test_secrets_of_a_command_are_stored_only_if_wanted_and_not_swept() -> None:
    assert "hunter22" in to_yaml(ask(command="python t.py --token hunter22", redact_env="no"))
    with pytest.raises(BadInput, match=r"token looks like a key"):
        ask(command="python t.py {token}", vary__token="one,other")


def test_what_a_command_prints_of_its_secrets_is_hidden(tmp_path: Path) -> None:
    redacted_words(["--token", 'hunter"22', "--password", "abc"])
    printed = 'error: unrecognized arguments: --token hunter"22, "hunter\\"22"; abc'
    assert hidden(printed) == 'error: unrecognized arguments: --token <redacted>, "<redacted>"; abc'
    (tmp_path / "log").write_bytes(b'\xff hunter"22\r\n')
    hide_in(tmp_path / "log")
    assert (tmp_path / "log").read_bytes() == b"\xff <redacted>\r\n"
