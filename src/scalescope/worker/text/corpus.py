"""Corpus: labelled texts for training and validation."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from scalescope.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Split:
    """Texts, and the class of each counted from 0."""

    texts: tuple[str, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A data set; `digest` changes with any text, label or order in it, but not with the file format."""

    train: Split
    validation: Split
    classes: int
    digest: str


Row = tuple[str, int]


def corpus_of(name: str, train: Iterable[Row], validation: Iterable[Row], classes: int) -> Corpus:
    """The corpus of these rows; both parts must have rows."""
    parts = {"train": _split(train), "validation": _split(validation)}
    digest = hashlib.sha256()
    for part, split in parts.items():
        if not split.texts:
            raise BadInput(f"data {name}: the {part} part has no rows")
        for text, label in zip(split.texts, split.labels, strict=True):
            written = text.encode("utf-8", "surrogatepass")
            digest.update(f"{part} {label} {len(written)} ".encode() + written)
    return Corpus(**parts, classes=classes, digest=digest.hexdigest())


def _split(rows: Iterable[Row]) -> Split:
    pairs = list(rows)
    return Split(texts=tuple(text for text, _ in pairs), labels=tuple(label for _, label in pairs))
