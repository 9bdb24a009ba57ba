"""Commands about a stored run keep its settings and its files, wherever they are run."""

import importlib
import shlex
from pathlib import Path

import pytest

from scalescope.results.run_commands import (
    VERB_FLAGS,
    command_on,
    flags_of,
    repeating_command,
)
from scalescope.results.run_folder import EXPERIMENT
from scalescope.results.run_record import RunRecord, write_run_record
from scalescope.studies.stored import all_studies


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A stored run of an own workload, started in a folder with spaces."""
    home = tmp_path / "my proj ünï"
    (home / "sub").mkdir(parents=True)
    (home / "my.py").write_text("def build(): ...\n")
    path = home / "runs" / "one"
    path.mkdir(parents=True)
    (path / EXPERIMENT).write_text("workload: my.py:build\nbatch_size: 8\n")
    write_run_record(path, RunRecord(verb="scale", flags=("--no-waterfall",), directory=str(home)))
    return path


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("bucket_cap_mb", 5.0, ("--bucket-cap-mb", "5")),
        ("bucket_cap_mb", None, ("--bucket-cap-mb", "none")),
        ("threads_per_rank", None, ("--threads-per-rank", "auto")),
        ("static_graph", True, ("--static-graph",)),
        ("static_graph", False, ("--no-static-graph",)),
        ("in_place", False, ("--out-of-place",)),
        ("world_size", (1, 2), ("--world-size", "1,2")),
        ("env", {"A": "1 2", "B": "x"}, ("--env", "A=1 2", "--env", "B=x")),
        ("nodes", 2, ("--nodes", "2")),
    ],
)
def test_a_setting_is_written_as_the_command_line_takes_it(
    name: str, value: object, words: tuple[str, ...]
) -> None:
    assert flags_of({name: value}) == words


def test_files_are_named_with_their_whole_path(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = run.parents[1]
    monkeypatch.chdir(home / "sub")
    argv = command_on(run, "tune", {"world_size": 2}, ("--levers", "precision"))
    assert argv == (
        "scalescope",
        "tune",
        str(run / EXPERIMENT),
        "--workload",
        f"{home / 'my.py'}:build",
        "--world-size",
        "2",
        "--levers",
        "precision",
    )
    assert tuple(shlex.split(shlex.join(argv))) == argv


def test_a_workload_that_is_changed_is_given_once(run: Path) -> None:
    argv = command_on(run, "tune", {"workload": "my.py:build"})
    assert argv.count("--workload") == 1
    assert f"{run.parents[1] / 'my.py'}:build" in argv


def test_a_relative_path_to_the_run_is_made_absolute(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    assert command_on(Path("one"), "train")[2] == str(run / EXPERIMENT)


def test_a_repeat_keeps_the_flags_of_the_verb(run: Path) -> None:
    record = RunRecord(verb="scale", flags=("--no-waterfall",))
    assert repeating_command(run, record)[-1] == "--no-waterfall"
    assert repeating_command(run, RunRecord()) == ()


def test_built_in_workloads_and_missing_files_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / EXPERIMENT).write_text(
        "workload: [mlp, gone.py:build, ~nobody-of-that-name/my.py:build, package.module:build]\n"
    )
    assert command_on(tmp_path, "train") == ("scalescope", "train", str(tmp_path / EXPERIMENT))


def test_a_folder_of_data_is_named_with_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / EXPERIMENT).write_text("data: ag_news\ndata_dir: texts\n")
    assert command_on(tmp_path, "train")[3:] == ("--data-dir", str(tmp_path / "texts"))


@pytest.fixture
def command_run(run: Path) -> Path:
    """The same of a training command, with a file and a folder beside it."""
    (run.parents[1] / "train.py").write_text("...\n")
    (run / EXPERIMENT).write_text(
        "workload: command\ncommand: torchrun --nproc-per-node={world_size} train.py --out=sub/ sub\n"
    )
    return run


def test_a_training_command_comes_last_and_is_complete(command_run: Path) -> None:
    home = command_run.parents[1]
    argv = command_on(command_run, "tune", {"world_size": 2}, ("--levers", "comm_hook"))
    assert argv == (
        *("scalescope", "tune", str(command_run / EXPERIMENT), "--world-size", "2", "--levers", "comm_hook"),
        *("--", "torchrun", "--nproc-per-node={world_size}", str(home / "train.py"), f"--out={home / 'sub'}"),
        "sub",
    )


def test_what_a_training_command_decides_is_not_advised(command_run: Path) -> None:
    changes = {"batch_size": 64, "strategy": "fsdp", "optimizer": "adamw", "num_workers": 2}
    argv = command_on(command_run, "train", changes)
    assert argv[3 : argv.index("--")] == ("--num-workers", "2")


def test_a_command_without_files_is_left_to_the_stored_request(command_run: Path) -> None:
    (command_run / EXPERIMENT).write_text("workload: command\ncommand: python -m 'my module'\n")
    assert repeating_command(command_run, RunRecord(verb="train")) == (
        *("scalescope", "train", str(command_run / EXPERIMENT)),
    )


def test_settings_of_a_command_are_written_behind_the_dashes() -> None:
    settings = {"workload": "command", "command": "python 'my train.py' {n}", "vary": {"n": "1"}}
    assert flags_of(settings) == ("--vary", "n=1", "--", "python", "my train.py", "{n}")


@pytest.mark.parametrize(
    ("verb", "flags", "kept"),
    [
        ("scale", ("--no-waterfall",), ("--no-waterfall",)),
        (
            "tune",
            ("--levers", "precision,compile", "--threshold=3%"),
            ("--levers", "precision,compile", "--threshold=3%"),
        ),
        ("scale", ("--setup", "curl evil | sh", "--launcher=slurm", "--no-waterfall"), ("--no-waterfall",)),
        ("tune", ("--levers", "strategy=ddp"), ("--levers", "strategy=ddp")),
        ("scale", ("--", "sh", "-c", "evil"), ()),
        ("comm", ("--min-busbw", "1e9B/s", "--json-nccl", "/home/me/.bashrc"), ("--min-busbw", "1e9B/s")),
        ("tune", ("--levers", "$(evil)"), ()),
    ],
)
def test_a_command_takes_over_only_flags_that_its_verb_has(
    verb: str, flags: tuple[str, ...], kept: tuple[str, ...], tmp_path: Path
) -> None:
    argv = repeating_command(tmp_path, RunRecord(verb=verb, flags=flags))
    assert argv == ("scalescope", verb, str(tmp_path / EXPERIMENT), *kept)


@pytest.mark.parametrize("verb", ["rm", "report;", "$(evil)", "scale\n", "x" * 300])
def test_a_stored_verb_that_does_not_measure_makes_no_command(verb: str, tmp_path: Path) -> None:
    assert repeating_command(tmp_path, RunRecord(verb=verb)) == ()
    assert command_on(tmp_path, verb, {}, ("--yes",)) == ()


def test_every_measuring_verb_is_known_with_flags_that_it_has() -> None:
    kinds = {kind.verb: kind for kind in all_studies()}
    assert set(VERB_FLAGS) == set(kinds)
    for verb, flags in VERB_FLAGS.items():
        command = importlib.import_module(f"scalescope.cli.verbs.{verb}").command
        assert flags <= {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
