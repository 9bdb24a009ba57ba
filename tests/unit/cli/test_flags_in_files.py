"""Every flag of a measuring verb is also a key of an experiment file, with the same effect."""

from pathlib import Path
from typing import Any

import click
import pytest

from scalescope.catalog import cards
from scalescope.cli import app, measuring
from scalescope.cli.help_pages import VerbOption
from scalescope.cli.options import MeasuringCommand, SettingOption
from scalescope.studies.study import Study

CONTEXT = click.Context(app.app)
VERBS = [
    verb
    for verb in app.app.list_commands(CONTEXT)
    if isinstance(app.app.get_command(CONTEXT, verb), MeasuringCommand)
]
# What is about this one command, and not about what it measures.
ONLY_FLAGS = {"resume", "trust", "dry_run", "verbose", "only_launch", "import_file"}
BY_KIND = {"int": "8", "float": "8", "duration": "90s", "bytes": "1M", "link": "1gbit", "str": "x"}
BY_NAME = {
    "workload": "cnn",
    "data": "synthetic",
    "strategy": "zero1",
    "collective": "all_reduce",
    "time": "30m",
    "levers": "precision,bucket_cap_mb=5",
    "threshold": "5%",
    "verify_loss": "200",
    "benchmark": "comm,memory",
    "warmup": "7",
    "iters": "9",
    "profile_steps": "2",
    "profile_ranks": "0,1",
    "min_busbw": "10GB/s",
    "json_nccl": "nccl.json",
    "setup": "module load cuda",
}
REQUIRED = {"profile_steps": "profile", "profile_ranks": "profile", "profile_ranges_only": "profile"}
REQUIRED["nsys"] = "profile"


def options_of(verb: str) -> list[VerbOption]:
    command = app.app.get_command(CONTEXT, verb)
    assert command is not None
    options = [option for option in command.params if isinstance(option, VerbOption)]
    return [option for option in options if not option.hidden]


def sample(option: VerbOption) -> str:
    """A value that is not the default."""
    if isinstance(option, SettingOption) and option.setting.choices:
        return option.setting.choices[0]
    if option.key in BY_NAME:
        return BY_NAME[option.key]
    assert isinstance(option, SettingOption), option.opts
    setting = option.setting
    if setting.high is not None and setting.high < 8:
        return f"{setting.high}"
    return BY_KIND[setting.kind] if (setting.low or 0) <= 8 or setting.kind != "int" else f"{setting.low}"


def typed_and_written(option: VerbOption) -> tuple[list[str], str]:
    """The flag as it is typed, and the line of a file that says the same."""
    assert option.key is not None
    if option.key == "vary":
        return ["--vary", "depth=1,2"], "vary: {depth: [1, 2]}"
    if isinstance(option, SettingOption) and option.setting.kind == "env":
        return ["--env", "A=1"], "env: {A: 1}"
    if option.is_flag:
        off = (isinstance(option, SettingOption) and option.stated is True) or option.default is True
        flag = option.secondary_opts[0] if off else option.opts[0]
        return [flag], f"{option.key}: {'false' if off else 'true'}"
    return [option.opts[0], sample(option)], f"{option.key}: {sample(option)}"


def flags() -> list[tuple[str, str]]:
    """Each flag once: what several verbs take from one card is the same everywhere."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for verb in VERBS:
        for option in options_of(verb):
            owner = option.setting.card if isinstance(option, SettingOption) else verb
            assert option.name is not None
            found.setdefault((owner, option.name), (verb, option.name))
    return list(found.values())


def is_of_command(option: VerbOption) -> bool:
    """Whether a flag requires a training command besides."""
    commands = {owner.__name__ for owner in cards.command_cards()}
    return isinstance(option, SettingOption) and option.setting.card in commands and option.key != "command"


class Asked(Exception):
    """Ends a verb before it measures."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command line asks of a study."""
    calls: list[tuple[Study, dict[str, Any]]] = []

    def stop(study: Study, arguments: dict[str, Any], **rest: Any) -> None:
        request, job_flags = measuring._request_of(study, arguments)
        job = {name: [value.text for value in values] for name, values in request.of_job().items()}
        job |= {name: [value.text for value in values] for name, values in job_flags.items()}
        job |= {"setup": list(arguments["setup"])} if arguments.get("setup") else {}
        built = request.experiment(study.defaults)
        calls.append((study, {"experiment": built, "strict": request.strict, "yes": request.yes, "job": job}))

    def ask(verb: str, *words: str) -> tuple[Study, dict[str, Any]]:
        module = __import__(f"scalescope.cli.verbs.{verb}", fromlist=["command"])
        monkeypatch.setattr(module, "measure", stop)
        with pytest.raises(SystemExit) as leaving:
            app.main([verb, *words])
        assert leaving.value.code == 0
        return calls.pop()

    return ask


@pytest.mark.parametrize(("verb", "name"), flags())
def test_a_flag_and_its_key_mean_the_same(
    verb: str, name: str, asked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (option,) = [option for option in options_of(verb) if option.name == name]
    if option.key is None:
        assert name in ONLY_FLAGS
        return
    flag, line = typed_and_written(option)
    needed = REQUIRED.get(option.key)
    file = tmp_path / "e.yaml"
    file.write_text(f"{line}\n" + (f"{needed}: true\n" if needed else ""))
    more = [f"--{needed}"] if needed else []
    if is_of_command(option):
        file.write_text(f"{line}\ncommand: train {{depth}}\n")
        more = ["--", "train", "{depth}"]
    by_flag = asked(verb, *flag, *more)
    assert asked(verb, str(file)) == by_flag
    assert by_flag != asked(verb) or sample(option) == option.setting.default  # type: ignore[attr-defined]


def test_a_typed_flag_wins_over_the_file(asked: Any, tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text("threshold: 5%\namp: true\n")
    study, request = asked("tune", str(file), "--threshold", "7%", "--precision", "fp32")
    assert study.threshold == pytest.approx(0.07)
    assert request["experiment"].asked("precision") == ("fp32",)
