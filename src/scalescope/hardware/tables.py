"""Reads the data files of this folder."""

import csv
import functools
from importlib import resources

Row = dict[str, str]


@functools.cache
def table(name: str) -> tuple[Row, ...]:
    """The rows of a CSV file, with the names of its first line."""
    text = resources.files("scalescope.hardware").joinpath(name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
