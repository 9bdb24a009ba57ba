"""Loads a data set with Hugging Face's `datasets`, which downloads it if needed."""

import importlib
from collections.abc import Iterator
from typing import Any

from scalescope.errors import BadInput
from scalescope.worker.text.corpus import Corpus, Row, corpus_of


def load_from_hub(name: str, repository: str, classes: int) -> Corpus:
    """The corpus in that repository, whose splits are called train and test."""
    try:
        datasets = importlib.import_module("datasets")
        parts = datasets.load_dataset(repository)
        return corpus_of(name, _rows(parts["train"]), _rows(parts["test"]), classes)
    except BadInput:
        raise
    except Exception as error:  # a download may raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"data {name}: {repository} could not be loaded: {reason}; use --data-dir to read local files"
        ) from error


def _rows(part: Any) -> Iterator[Row]:
    return zip(part["text"], part["label"], strict=True)
