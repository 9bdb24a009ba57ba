"""Own workloads whose errors and output no terminal can show: one line, the user's own, exit code 2."""

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
_IMPORTS = "import torch\nfrom torch import nn\n\n"
_DATA = "[(torch.zeros(2), torch.zeros(2))] * 64, nn.functional.mse_loss"

# Source, and what is said of it.
_MODELS = {
    "raises": ("def build():\n    raise ValueError('no data \\x1b[2J')", "ValueError: no data \\x1b[2J"),
    "raises_nothing_printable": ("def build():\n    raise KeyError('\\udcff')", "line 5: KeyError"),
}


@pytest.mark.parametrize("name", _MODELS)
def test_a_model_that_cannot_be_used_is_refused_in_one_line(name: str, run_here: RunsHere) -> None:
    source, words = _MODELS[name]
    (run_here.directory / f"{name}.py").write_text(_IMPORTS + source + "\n", encoding="utf-8")
    ended = run_here("train", f"--workload={name}.py:build", *_SHORT)
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("scalescope: ")
    assert lines[0].isprintable()
    assert words in lines[0]
    assert "Traceback" not in ended.stdout


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
