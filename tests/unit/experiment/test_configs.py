"""The experiment files in configs/: each describes what it shows, and can be run as it is."""

from pathlib import Path

import pytest

from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.trial import Trial
from scalescope.experiment.yaml_file import read_experiment_file
from tests.builders.requests import flags
from tests.simulated.launcher import TWO_CORES

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A folder with files of both corpora, as far as planning looks at them."""
    for corpus in ("ag_news_csv", "imdb"):
        (tmp_path / corpus).mkdir()
        for part in ("train", "test"):
            (tmp_path / corpus / f"{part}.csv").touch()
    return tmp_path


def trials_of(path: Path, data_dir: Path) -> tuple[Trial, ...]:
    entries = read_experiment_file(path)
    extra = flags(data_dir=str(data_dir)) if "data" in entries else {}
    return expand(build_experiment("train", "train", entries, extra, {}), TWO_CORES).trials


def config(name: str) -> Path:
    return next(path for path in CONFIGS if path.stem == name)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_expands_and_describes_what_it_shows(path: Path, data_dir: Path) -> None:
    assert trials_of(path, data_dir)
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("name", ["ag_news_{}", "ag_news_{}_optimized", "imdb_{}"])
def test_four_ranks_do_the_same_job_as_one(name: str, data_dir: Path) -> None:
    (single,) = trials_of(config(name.format("single")), data_dir)
    (four,) = trials_of(config(name.format("ddp_4")), data_dir)
    assert (single.world_size, four.world_size) == (1, 4)
    assert single.samples_per_step == four.samples_per_step
    differ = {key for key, value in single.settings.items() if four.settings[key] != value}
    assert differ == {"world_size", "strategy", "threads_per_rank"}
