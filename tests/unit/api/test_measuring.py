"""Measuring calls on the fake launcher: results, refusals, progress, signals and threads."""

import asyncio
import io
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scalescope
from scalescope.api import running as calls
from scalescope.api.call import Call
from scalescope.api.study_options import profiling_of
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.run_record import is_unfinished, read_run_record
from scalescope.studies import running
from scalescope.studies.runs import resuming
from scalescope.studies.scaling.scale import ScaleStudy
from tests.simulated.launcher import CostModel, FakeLauncher

_SHORT = {"steps_per_epoch": 8, "warmup_steps": 3, "batch_size": 50}


@pytest.fixture(autouse=True)
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    """Every call measures a simulated machine, in an empty folder."""
    fake = FakeLauncher(CostModel(exposed_comm_s={2: 0.020}, bytes_per_s=2e8))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "_launcher_for", lambda prepared, context: fake)
    return fake


def test_scale_returns_what_it_measured(capfd: pytest.CaptureFixture[str]) -> None:
    result = scalescope.scale("mlp", world_size=[1, 2], repeats=2, **_SHORT)
    assert type(result) is scalescope.Scaling
    assert [row["ranks"] for row in result.rows()] == [1, 2]
    assert result.rows()[1]["speedup"] == pytest.approx(1.0)
    assert result.rows()[1]["lost_ranks_communication"] == pytest.approx(1.0)
    assert result.findings()
    assert result.exit_code == 0
    assert result.path.parent == Path("runs")
    assert scalescope.load("runs/latest").rows() == result.rows()
    assert capfd.readouterr() == ("", "")  # quiet outside a terminal


def test_the_waterfall_may_be_left_out() -> None:
    result = scalescope.scale(world_size=2, waterfall=False, repeats=1, **_SHORT)
    assert result.run.record.flags == ("--no-waterfall",)
    assert not any(row["without_communication"] for row in result.trials())


def test_train_returns_a_row_for_each_configuration() -> None:
    result = scalescope.train("mlp", world_size=[1, 2], repeats=2, **_SHORT)
    assert type(result) is scalescope.Trained
    rows = result.rows()
    assert [(row["ranks"], row["launches"]) for row in rows] == [(1, 2), (2, 2)]
    assert rows[0]["samples_per_s"] == pytest.approx(50 / 0.020)
    assert {row["benchmark"] for row in rows} == {"train"}


def test_a_profile_has_a_number_of_steps() -> None:
    assert profiling_of(5).steps == 5
    with pytest.raises(BadInput, match="profile_steps=: expected a whole number from 1 to 100, got 0"):
        scalescope.train(profile=True, profile_steps=0)


def test_comm_returns_a_row_for_each_size() -> None:
    result = scalescope.comm(
        world_size=2, collective="all_reduce", min_bytes="1K", max_bytes="4K", min_busbw="1TB/s"
    )
    assert type(result) is scalescope.Collectives
    assert {row["collective"] for row in result.rows()} == {"all_reduce"}
    assert {row["size_bytes"] for row in result.rows()} == {1024, 2048, 4096}
    assert result.exit_code == 8  # no network is that fast


def test_tune_returns_a_row_for_each_combination() -> None:
    result = scalescope.tune(
        "mlp", levers=["bucket_cap_mb", "comm_hook"], threshold="5%", world_size=2, **_SHORT
    )
    assert type(result) is scalescope.Tuned
    assert result.run.record.flags[:4] == ("--levers", "bucket_cap_mb,comm_hook", "--threshold", "5%")
    assert "" in {row["levers"] for row in result.rows()}  # the current settings
    assert result.tuning["verdict"] == result.headline
    assert result.rows()[0].keys() >= {"speedup", "speedup_low", "speedup_high", "launches"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": 0.03}, "threshold=: expected a percentage such as 3%, got 0.03"),
        ({"verify_loss": 2}, "verify_loss=: expected a whole number from 8 to 1,000,000, got 2"),
        ({"build": "mlp", "workload": "cnn"}, "workload=: is another name for build; give only one of them"),
        ({"build": "my.py:build"}, "build=: workload my.py:build: my.py: No such file or directory"),
        ({"lever": "jit"}, "tune() has no setting lever; did you mean levers?"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_launched(
    launcher: FakeLauncher, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(scalescope.ScalescopeError) as refused:
        scalescope.tune(**arguments)
    assert (str(refused.value), refused.value.exit_code) == (message, 2)
    assert launcher.launched == []
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("verb", "variable"),
    [
        ("scale", "SCALESCOPE_RANK"),
        ("train", "SCALESCOPE_ATTACH"),
        ("comm", "SCALESCOPE_RANK"),
        ("tune", "SCALESCOPE_ATTACH"),
    ],
)
def test_a_call_inside_a_rank_is_refused(verb: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "0")
    with pytest.raises(BadInput) as refused:
        getattr(scalescope, verb)()
    expected = (
        f'scalescope.{verb}() was called inside a rank: put the call under `if __name__ == "__main__":`'
    )
    assert str(refused.value) == expected


def test_a_call_under_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "2" if name == "WORLD_SIZE" else "1")
    with pytest.raises(BadInput, match="cannot be called under torchrun or srun"):
        scalescope.scale()


def test_progress_is_shown_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    result = scalescope.train(world_size=2, progress=True, **_SHORT)
    out = capfd.readouterr().out
    assert "[Rank 1]" in out
    assert result.notes and all(note in out for note in result.notes)


def test_progress_is_shown_at_a_terminal_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    call = Call(settings={})
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(calls._watcher_of(ScaleStudy(), call), calls.NotingWatcher)


def test_a_failed_launch_is_a_result(launcher: FakeLauncher) -> None:
    launcher._outcomes = lambda trial, launch: Outcome(status="failed", reason="died")
    result = scalescope.train("mlp", **_SHORT)
    assert result.exit_code == 4
    assert {row["reason"] for row in result.trials()} == {"died"}
    assert "died" in result.table()


def _interrupts(number: int, launch_number: int) -> Any:
    def outcome(trial: Trial, launch: int) -> Outcome | None:
        if launch == launch_number:
            signal.raise_signal(number)
        return None

    return outcome


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_raises_keyboard_interrupt_and_the_run_can_be_resumed(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "machine_here", dict)  # it is not the simulated one
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    launcher._outcomes = _interrupts(signal.SIGINT, 1)
    with pytest.raises(KeyboardInterrupt, match=r"scalescope resume .* continues"):
        scalescope.train("mlp", repeats=2, **_SHORT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    path = Path("runs/latest")
    end = read_run_record(path).end
    assert end is not None and (end.why, end.signal) == ("interrupted", "SIGINT")
    assert is_unfinished(path)
    launcher._outcomes = lambda trial, launch: None
    done = len(launcher.launched)
    result = scalescope.train(resume=True)
    assert result.path.resolve() == path.resolve()
    assert [row["launches"] for row in result.rows()] == [2]
    assert len(launcher.launched) == done + 1


_TERMINATED = f"""
import signal, sys
sys.path.append({str(Path(__file__).parents[3])!r})
from scalescope.studies import running
from tests.simulated.launcher import CostModel, FakeLauncher
import scalescope

def terminate(trial, launch):
    print("torch" in sys.modules, flush=True)
    signal.raise_signal(signal.SIGTERM)

running._launcher_for = lambda prepared, context: FakeLauncher(CostModel(), outcomes=terminate)
scalescope.train("mlp", output_dir="run")
"""


def test_sigterm_ends_the_process_after_the_run_is_stored_and_torch_is_never_loaded() -> None:
    ended = subprocess.run([sys.executable, "-c", _TERMINATED], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGTERM, "False\n", "")
    end = read_run_record(Path("run")).end
    assert end is not None and end.signal == "SIGTERM"


def test_handlers_of_one_s_own_for_sigterm_are_left_alone(launcher: FakeLauncher) -> None:
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        launcher._outcomes = _interrupts(signal.SIGTERM, 0)
        assert scalescope.train("mlp", **_SHORT).exit_code == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught


def test_calls_work_in_other_threads_and_inside_a_running_loop() -> None:
    results: list[scalescope.StoredRun] = []

    def call() -> None:
        results.append(scalescope.train("mlp", budget="1h", **_SHORT))

    async def main() -> None:
        call()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    asyncio.run(main())
    assert [result.exit_code for result in results] == [0, 0]


def test_importing_loads_nothing_of_the_package_and_its_names_neither_controller_nor_torch() -> None:
    heavy = (
        "pydantic",
        "click",
        "rich",
        "yaml",
        "torch",
        "scalescope.studies",
        "scalescope.cli",
        "scalescope.report",
    )
    code = (
        "import sys, scalescope; "
        "print([n for n in sys.modules if n.startswith(('scalescope.', 'pydantic'))]); "
        "from scalescope import scale, train, comm, tune; "
        f"print([n for n in sys.modules if n.startswith({heavy!r})])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]
    assert "load" in dir(scalescope)
