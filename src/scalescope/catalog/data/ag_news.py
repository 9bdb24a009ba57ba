"""Card of the AG News corpus, and where its files are looked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.catalog.data_files import FilesOnDisk, check_downloadable, existing_folder
from scalescope.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class AgNews(FilesOnDisk):
    """News in four classes: world, sports, business, science and technology."""

    classes = 4

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse a folder without the files, and no folder without a way to download."""
        if values["data_dir"] is None:
            check_downloadable("ag_news", "ag_news_csv/train.csv")
        else:
            find_files(values["data_dir"])


def find_files(data_dir: str) -> tuple[Path, Path]:
    """train.csv and test.csv, in ag_news_csv or in the folder itself."""
    folder = existing_folder("ag_news", data_dir)
    for directory in (folder / "ag_news_csv", folder):
        files = directory / "train.csv", directory / "test.csv"
        missing = [file.name for file in files if not file.is_file()]
        if not missing:
            return files
        if len(missing) < len(files):
            raise BadInput(f"data ag_news: no {missing[0]} in {directory}")
    raise BadInput(f"data ag_news: no ag_news_csv/train.csv in {data_dir}")
