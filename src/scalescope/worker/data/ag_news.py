"""Reads AG News: titles and descriptions of news in four classes."""

from collections.abc import Iterator
from pathlib import Path

from scalescope.catalog.data.ag_news import AgNews, find_files
from scalescope.errors import BadInput
from scalescope.worker.text import Corpus, Row, corpus_of, csv_rows, load_from_hub


def load(options: AgNews) -> Corpus:
    """The corpus from local files, or from the hub where no folder is named."""
    if options.data_dir is None:
        return load_from_hub("ag_news", "fancyzhx/ag_news", AgNews.classes)
    train, test = find_files(options.data_dir)
    return corpus_of("ag_news", _rows(train), _rows(test), AgNews.classes)


def _rows(path: Path) -> Iterator[Row]:
    known = {str(number): number - 1 for number in range(1, AgNews.classes + 1)}
    for where, (label, title, description) in csv_rows(path, fields=3):
        if label not in known:
            raise BadInput(f"{where}: class {label[:20]!r}; expected 1 to {AgNews.classes}")
        yield f"{title} {description}", known[label]
