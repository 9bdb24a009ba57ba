"""Reads IMDB's film reviews, negative or positive, in any of their three common formats."""

from collections.abc import Iterator
from pathlib import Path

from scalescope.catalog.data.imdb import Imdb, find_files
from scalescope.errors import BadInput
from scalescope.worker.text import Corpus, Row, corpus_of, csv_rows, load_from_hub, text_files

_HEADER = ["review", "sentiment"]
_LABELS = {"negative": 0, "positive": 1}
_FIFTH = 5  # a single file has no split: every fifth row is for validation


def load(options: Imdb) -> Corpus:
    """The corpus from local files, or from the hub where no folder is named."""
    if options.data_dir is None:
        return load_from_hub("imdb", "stanfordnlp/imdb", Imdb.classes)
    files = find_files(options.data_dir)
    if len(files) == 1:
        rows = list(_rows(files[0]))
        others = [row for number, row in enumerate(rows, 1) if number % _FIFTH]
        return corpus_of("imdb", others, rows[_FIFTH - 1 :: _FIFTH], Imdb.classes)
    train, test = (_tree(file) if file.is_dir() else _rows(file) for file in files)
    return corpus_of("imdb", train, test, Imdb.classes)


def _rows(path: Path) -> Iterator[Row]:
    rows = csv_rows(path, fields=2)
    where, header = next(rows, (f"{path}:1", []))
    if header != _HEADER:
        raise BadInput(f"{where}: expected the header {','.join(_HEADER)}")
    for where, (text, label) in rows:
        if label not in _LABELS:
            raise BadInput(f"{where}: sentiment {label[:20]!r}; expected negative or positive")
        yield text, _LABELS[label]


def _tree(folder: Path) -> Iterator[Row]:
    for name, label in (("neg", 0), ("pos", 1)):
        for text in text_files(folder / name):
            yield text, label
