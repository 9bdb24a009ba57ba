"""Own workloads that only a rank can refuse: one line, the user's line where there is one, exit code 2."""

import pytest

from tests.gloo.real_runs import RunsHere

pytestmark = pytest.mark.gloo

_SHORT = (
    "--device=cpu",
    "--steps-per-epoch=4",
    "--warmup-steps=3",
    "--no-repeat-disturbed",
    "--no-breakdown",
)
_IMPORTS = "import sys\nimport torch\nfrom torch import nn\n\n"
_DATA = "[(torch.zeros(2), torch.zeros(2))] * 64, nn.functional.mse_loss"

# Source, number of ranks, and what is said of it.
_MODELS = {
    "raises": ("def build():\n    raise ValueError('no data \\x1b[2J')", 1, "ValueError: no data \\x1b[2J"),
    "raises_nothing_printable": ("def build():\n    raise KeyError('\\udcff')", 1, "line 6: KeyError"),
    "returns_something_else": ("def build():\n    return 42", 1, "returns_something_else.py:build"),
    "returns_no_model": (f"def build():\n    return 'model', {_DATA}", 1, "returns_no_model.py:build"),
    "no_parameters": (f"def build():\n    return nn.ReLU(), {_DATA}", 1, "no_parameters.py:build"),
    "not_callable": ("build = 42", 1, "not_callable.py:build"),
    "exits": ("def build():\n    sys.exit(0)", 1, "line 6: called sys.exit(0)"),
    "differs": (f"def build(rank):\n    return nn.Linear(2, 2 + rank), {_DATA}", 2, "rank"),
}


@pytest.mark.parametrize("name", _MODELS)
def test_a_model_that_cannot_be_used_is_refused_in_one_line(name: str, run_here: RunsHere) -> None:
    source, ranks, words = _MODELS[name]
    (run_here.directory / f"{name}.py").write_text(_IMPORTS + source + "\n", encoding="utf-8")
    ended = run_here("train", f"--workload={name}.py:build", f"--world-size={ranks}", *_SHORT)
    assert ended.returncode in (2, 4)
    lines = ended.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("scalescope: ")
    assert lines[0].isprintable()
    assert words in lines[0]
    assert "Traceback" not in ended.stdout


@pytest.mark.parametrize("module", ["no_such_module", "model.pt"])
def test_a_module_that_is_not_there_is_named(module: str, run_here: RunsHere) -> None:
    ended = run_here("train", f"--workload={module}:build", *_SHORT)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert module in ended.stderr


def test_what_a_model_prints_disturbs_nothing(run_here: RunsHere) -> None:
    source = (
        f"print('{{\"exited\": 1}}')\ndef build():\n"
        f"    print('\\x1b[2J\\0', flush=True)\n    return nn.Linear(2, 2), {_DATA}\n"
    )
    (run_here.directory / "prints.py").write_text(_IMPORTS + source, encoding="utf-8")
    ended = run_here("train", "--workload=prints.py:build", *_SHORT)
    assert ended.returncode == 0
    assert [result["status"] for result in ended.results] == ["ok"]
    assert "\x1b[2J" not in ended.stdout
