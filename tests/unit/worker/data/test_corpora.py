"""Reading corpora from small files of every format, and refusing broken ones by file and line."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scalescope.catalog.data.ag_news import AgNews
from scalescope.catalog.data.imdb import Imdb
from scalescope.errors import BadInput
from scalescope.worker.data import ag_news, imdb
from scalescope.worker.text import Corpus


def write(folder: Path, **files: str | bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.csv").write_bytes(content if isinstance(content, bytes) else content.encode())


def news(folder: Path, train: str | bytes, test: str = '"1","t","d"\n') -> Corpus:
    write(folder / "ag_news_csv", train=train, test=test)
    return ag_news.load(AgNews(data_dir=str(folder)))


def reviews(folder: Path, train: str | bytes, test: str = "review,sentiment\nx,positive\n") -> Corpus:
    write(folder / "imdb", train=train, test=test)
    return imdb.load(Imdb(data_dir=str(folder)))


def test_news_are_titles_and_descriptions_with_odd_quotes(tmp_path: Path) -> None:
    corpus = news(tmp_path, '"3","Dollar ""dips""","It\'s \\$1.9, \\"odd\\" here"\n\n4,"a\nb",c\n')
    assert corpus.train.texts == ('Dollar "dips" It\'s \\$1.9, \\odd\\" here"', "a\nb c")
    assert corpus.train.labels == (2, 3)
    assert corpus.validation.labels == (0,)
    assert corpus.classes == 4


@pytest.mark.parametrize(
    ("content", "line", "complaint"),
    [
        ('1,a,b\n2,"two\nlines",b\n3,a\n', 4, "2 fields; expected 3"),
        ('1,a,b\n"1","never closed,b\n2,a,b\n', 2, "2 fields; expected 3"),
        ("1,a,b\n5,a,b\n", 2, "class '5'; expected 1 to 4"),
        ("0,a,b\n", 1, "class '0'; expected 1 to 4"),
        ("1,a,b\n\n²,a,b\n", 3, "class '²'; expected 1 to 4"),
    ],
)
def test_a_broken_row_of_news_is_named(tmp_path: Path, content: str, line: int, complaint: str) -> None:
    with pytest.raises(BadInput) as caught:
        news(tmp_path, content)
    assert str(caught.value) == f"{tmp_path}/ag_news_csv/train.csv:{line}: {complaint}"


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (b"1,caf\xe9,b\n", "1,a,b\n", r"train.csv: not UTF-8 text"),
        ("", "1,a,b\n", r"^data ag_news: the train part has no rows$"),
        ("1,a,b\n", "\n", r"^data ag_news: the validation part has no rows$"),
    ],
)
def test_what_is_not_text_or_empty_is_refused(
    tmp_path: Path, train: str | bytes, test: str, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        news(tmp_path, train, test)


def test_reviews_with_a_header(tmp_path: Path) -> None:
    long = "word " * 40_000  # longer than csv's own limit
    corpus = reviews(tmp_path, f'review,sentiment\n"so ""bad"", really",negative\n{long},positive\n')
    assert corpus.train.texts == ('so "bad", really', long)
    assert corpus.train.labels == (0, 1)
    assert (corpus.validation.labels, corpus.classes) == ((1,), 2)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("fine,positive\n", "train.csv:1: expected the header review,sentiment"),
        ("", "train.csv:1: expected the header review,sentiment"),
        ("review,sentiment\nfine,good\n", "train.csv:2: sentiment 'good'; expected negative or positive"),
        ("review,sentiment\nfine\n", "train.csv:2: 1 field; expected 2"),
    ],
)
def test_a_broken_row_of_reviews_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    with pytest.raises(BadInput) as caught:
        reviews(tmp_path, content)
    assert str(caught.value).endswith(complaint)


def test_every_fifth_row_of_one_file_judges(tmp_path: Path) -> None:
    rows = "".join(f"r{number},positive\n" for number in range(1, 11))
    write(tmp_path, **{"IMDB Dataset": f"review,sentiment\n{rows}"})
    corpus = imdb.load(Imdb(data_dir=str(tmp_path)))
    assert corpus.validation.texts == ("r5", "r10")
    assert corpus.train.texts == ("r1", "r2", "r3", "r4", "r6", "r7", "r8", "r9")


def test_a_tree_of_text_files(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for kind in ("pos", "neg"):
            folder = tmp_path / "aclImdb" / part / kind
            folder.mkdir(parents=True)
            for number in (1, 0):
                (folder / f"{number}_9.txt").write_text(f"{part} {kind} {number}")
    corpus = imdb.load(Imdb(data_dir=str(tmp_path)))
    assert corpus.train.texts == ("train neg 0", "train neg 1", "train pos 0", "train pos 1")
    assert corpus.train.labels == corpus.validation.labels == (0, 0, 1, 1)


def test_different_corpora_have_different_digests(tmp_path: Path) -> None:
    same, again = (news(tmp_path / name, "1,a,b\n2,c,d\n").digest for name in ("same", "again"))
    assert same == again
    others = ["1,a,b\n3,c,d\n", "2,c,d\n1,a,b\n", "1,a,b\n2,c,e\n"]
    assert len({news(tmp_path / f"{n}", text).digest for n, text in enumerate(others)} | {same}) == 4


class FakeDatasets(ModuleType):
    """Stands for the package `datasets`; it is asked for names and hands out columns."""

    def __init__(self, problem: Exception | None = None) -> None:
        super().__init__("datasets")
        self.asked: list[str] = []
        self._problem = problem

    def load_dataset(self, name: str) -> dict[str, Any]:
        self.asked.append(name)
        if self._problem is not None:
            raise self._problem
        return {"train": {"text": ["a", "b"], "label": [1, 0]}, "test": {"text": ["c"], "label": [1]}}


@pytest.mark.parametrize(
    ("load", "card", "name", "classes"),
    [(ag_news.load, AgNews, "fancyzhx/ag_news", 4), (imdb.load, Imdb, "stanfordnlp/imdb", 2)],
)
def test_without_a_folder_the_hub_is_asked(
    load: Any, card: Any, name: str, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeDatasets()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    corpus = load(card(data_dir=None))
    assert hub.asked == [name]
    assert (corpus.train.texts, corpus.train.labels) == (("a", "b"), (1, 0))
    assert (corpus.validation.labels, corpus.classes) == ((1,), classes)


def test_a_failed_download_names_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", FakeDatasets(ConnectionError("no route\nto host")))
    with pytest.raises(BadInput) as caught:
        imdb.load(Imdb(data_dir=None))
    assert str(caught.value) == (
        "data imdb: stanfordnlp/imdb could not be loaded: no route; use --data-dir to read local files"
    )
