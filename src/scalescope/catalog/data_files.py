"""What data sets on disk have in common: they refuse early what a rank could not load."""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from scalescope.catalog.setting import setting
from scalescope.catalog.traits import DataTraits
from scalescope.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesOnDisk(DataTraits):
    """A data set in files: an epoch is all of it, and a part of it judges."""

    ends = True
    has_validation = True
    has_corpus = True
    epoch_steps = None

    data_dir: str | None = setting(
        None,
        "Folder with the data set's files; without it, the Python package datasets downloads them.",
        sweep=False,
        holds_path=True,
    )


def existing_folder(name: str, data_dir: str) -> Path:
    """The folder that the user named, which must exist."""
    folder = Path(os.path.expanduser(data_dir))  # noqa: PTH111, Path's raises without a home
    if not folder.is_dir():
        raise BadInput(f"data {name}: --data-dir {data_dir}: no such folder")
    return folder


def check_downloadable(name: str, looked_for: str) -> None:
    """Without a folder only the package `datasets` can bring the data."""
    if importlib.util.find_spec("datasets") is None:
        raise BadInput(
            f"data {name}: give --data-dir with the folder that holds {looked_for}, "
            "or install the Python package datasets, which downloads it"
        )
