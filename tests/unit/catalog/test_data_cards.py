"""Cards of data sets: where they look for files, and the one-line error for missing files."""

import re
from pathlib import Path

import pytest

from scalescope.catalog.data import ag_news, imdb
from scalescope.errors import BadInput
from scalescope.experiment.expand import expand
from scalescope.experiment.trial import Trial
from tests.builders.requests import ask
from tests.simulated.launcher import TWO_CORES


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def trial_of(data: str, **texts: str) -> Trial:
    (trial,) = expand(ask(workload="transformer", data=data, **texts), TWO_CORES).trials
    return trial


def refusal(data: str, **texts: str) -> str:
    with pytest.raises(BadInput) as caught:
        trial_of(data, **texts)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_ag_news_is_found_in_its_folder_or_as_it(tmp_path: Path) -> None:
    files = tmp_path / "ag_news_csv" / "train.csv", tmp_path / "ag_news_csv" / "test.csv"
    touch(*files)
    assert ag_news.find_files(str(tmp_path)) == ag_news.find_files(str(tmp_path / "ag_news_csv")) == files


def test_missing_files_are_named(tmp_path: Path) -> None:
    assert refusal("ag_news", data_dir=str(tmp_path)) == (
        f"data ag_news: no ag_news_csv/train.csv in {tmp_path}"
    )
    touch(tmp_path / "ag_news_csv" / "train.csv")
    assert (
        refusal("ag_news", data_dir=str(tmp_path)) == f"data ag_news: no test.csv in {tmp_path}/ag_news_csv"
    )
    touch(tmp_path / "imdb" / "train.csv")
    refused = refusal("imdb", data_dir=str(tmp_path))
    named = ("imdb/train.csv", "test.csv", "IMDB Dataset.csv", "aclImdb/train/pos", str(tmp_path))
    assert [text for text in named if text not in refused] == []


@pytest.mark.parametrize("data", ["ag_news", "imdb"])
def test_a_missing_folder_is_named_and_without_one_there_must_be_a_way_to_download(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (f"{tmp_path}/none", "~nobody-of-that-name/texts"):
        assert refusal(data, data_dir=folder) == f"data {data}: --data-dir {folder}: no such folder"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert re.match(rf"data {data}: give --data-dir .+ package datasets", refusal(data))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert trial_of(data).settings["data_dir"] is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["imdb/train.csv", "imdb/test.csv"], ["imdb/train.csv", "imdb/test.csv"]),
        (["train.csv", "test.csv"], ["train.csv", "test.csv"]),
        (["IMDB Dataset.csv"], ["IMDB Dataset.csv"]),
        (["imdb/IMDB Dataset.csv"], ["imdb/IMDB Dataset.csv"]),
        (
            [f"aclImdb/{part}/{kind}/0_1.txt" for part in ("train", "test") for kind in ("pos", "neg")],
            ["aclImdb/train", "aclImdb/test"],
        ),
        (
            [f"{part}/{kind}/0_1.txt" for part in ("train", "test") for kind in ("pos", "neg")],
            ["train", "test"],
        ),
    ],
)
def test_reviews_are_found_in_either_folder_layout(
    tmp_path: Path, files: list[str], expected: list[str]
) -> None:
    touch(*(tmp_path / file for file in files))
    assert imdb.find_files(str(tmp_path)) == tuple(tmp_path / name for name in expected)


def test_an_epoch_is_the_whole_data_set(tmp_path: Path) -> None:
    touch(tmp_path / "train.csv", tmp_path / "test.csv")
    trial = trial_of("ag_news", data_dir=str(tmp_path), eval="true")
    assert trial.settings["steps_per_epoch"] is None
    assert trial_of("ag_news", data_dir=str(tmp_path), steps_per_epoch="9").settings["steps_per_epoch"] == 9


def test_fewer_classes_than_the_data_has_are_refused(tmp_path: Path) -> None:
    touch(tmp_path / "train.csv", tmp_path / "test.csv")
    refused = refusal("ag_news", data_dir=str(tmp_path), num_classes="3")
    assert refused == "num_classes must be at least 4 for ag_news, got 3"
    assert trial_of("imdb", data_dir=str(tmp_path), num_classes="3").settings["num_classes"] == 3
