"""Card of IMDB's film reviews, and where their files are looked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.catalog.data_files import FilesOnDisk, check_downloadable, existing_folder
from scalescope.errors import BadInput

_ONE_FILE = "IMDB Dataset.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imdb(FilesOnDisk):
    """Film reviews, negative or positive: longer texts than news."""

    classes = 2

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse a folder without the files, and no folder without a way to download."""
        if values["data_dir"] is None:
            check_downloadable("imdb", "imdb/train.csv")
        else:
            find_files(values["data_dir"])


def find_files(data_dir: str) -> tuple[Path, ...]:
    """What is trained on and what judges: two CSV files, two folders of aclImdb, or one file for both."""
    folder = existing_folder("imdb", data_dir)
    for directory in (folder / "imdb", folder):
        files = directory / "train.csv", directory / "test.csv"
        if all(file.is_file() for file in files):
            return files
        if (directory / _ONE_FILE).is_file():
            return (directory / _ONE_FILE,)
    for directory in (folder / "aclImdb", folder):
        parts = directory / "train", directory / "test"
        if all((part / name).is_dir() for part in parts for name in ("pos", "neg")):
            return parts
    raise BadInput(
        f"data imdb: none of imdb/train.csv with test.csv, {_ONE_FILE} and aclImdb/train/pos is in {data_dir}"
    )
