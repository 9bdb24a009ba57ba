"""Text data sets: rows from local files, their vocabulary, and encoded tokens."""

import contextlib
import csv
import fcntl
import hashlib
import importlib
import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from scalescope.errors import BadInput, StorageError
from scalescope.results.files import write_atomically
from scalescope.worker.training.evaluation import IGNORED

# ---- Reads texts from CSV files and folders; errors name the file and line


_LONGEST_FIELD = 1 << 24  # the csv module's default is below the longest reviews


def csv_rows(path: Path, fields: int) -> Iterator[tuple[str, list[str]]]:
    """Every row with the `file:line` where it begins; blank lines are skipped."""
    csv.field_size_limit(_LONGEST_FIELD)
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            for row in reader:
                where = f"{path}:{line}"
                if row and len(row) != fields:
                    raise BadInput(f"{where}: {len(row)} field{'s' * (len(row) > 1)}; expected {fields}")
                if row:
                    yield where, row
                line = reader.line_num + 1
    except csv.Error as error:
        raise BadInput(f"{path}:{line}: {error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def text_files(folder: Path) -> Iterator[str]:
    """The text of every .txt file of a folder, ordered by name."""
    for path in sorted(folder.glob("*.txt")):
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{path}: not UTF-8 text ({error.reason})") from None
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from None


# ---- Corpus: labelled texts for training and validation


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


# ---- Words and their ids: collected from the training texts once, cached, equal on every rank


PADDING = 0
UNKNOWN = 1
FIRST_WORD = 2
_TOKENISER_VERSION = 1  # part of the cache key: increase it with every change of `words_of`
_BREAK = re.compile(r"<br\s*/?>")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")

Vocabulary = Mapping[str, int]


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, including numbers, without HTML line breaks."""
    return _WORD.findall(_BREAK.sub(" ", text.lower()))


def vocabulary_of(corpus: Corpus, size: int) -> Vocabulary:
    """The ids of the most frequent words of the training texts; the first rank computes and caches them."""
    words = _cached(corpus, size) or most_frequent(corpus.train.texts, size - FIRST_WORD)
    return {word: number for number, word in enumerate(words, FIRST_WORD)}


def most_frequent(texts: Iterable[str], count: int) -> list[str]:
    """Up to `count` words, most frequent first, ties in alphabetical order."""
    counts = Counter(word for text in texts for word in words_of(text))
    return sorted(counts, key=lambda word: (-counts[word], word))[:count]


def cache_folder() -> Path | None:
    """The user's cache folder; None without a home directory."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():
        return Path(given) / "scalescope"
    with contextlib.suppress(RuntimeError):
        return Path.home() / ".cache" / "scalescope"
    return None


def _cached(corpus: Corpus, size: int) -> list[str] | None:
    """The words from the cache, which is filled first if needed; None if nothing can be cached."""
    folder = cache_folder()
    if folder is None:
        return None
    key = hashlib.sha256(f"{corpus.digest} {size} {_TOKENISER_VERSION}".encode()).hexdigest()[:24]
    file = folder / f"vocabulary-{key}.json"
    words = _read(file, size)
    if words is not None:
        return words
    with contextlib.suppress(OSError, StorageError), _locked(file.with_suffix(".lock")):
        words = _read(file, size)  # another rank may have been first
        if words is None:
            words = most_frequent(corpus.train.texts, size - FIRST_WORD)
            write_atomically(file, json.dumps(words, ensure_ascii=False))
    return words


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock file. It is not removed: other ranks may be waiting for it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _read(file: Path, size: int) -> list[str] | None:
    """The words of a cache file; None if it is missing or damaged."""
    try:
        words = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    fits = isinstance(words, list) and len(words) <= size - FIRST_WORD
    return words if fits and all(isinstance(word, str) for word in words) else None


# ---- Texts as rows of word ids of equal length, and as data sets that return whole batches


Pair = tuple[Tensor, Tensor]


def encode(texts: Sequence[str], vocabulary: Vocabulary, length: int) -> Tensor:
    """Word ids, int32, texts × `length`: cut or padded at the end; an empty text is one unknown word."""
    ids = array("i")
    for text in texts:
        row = [vocabulary.get(word, UNKNOWN) for word in words_of(text)[:length]] or [UNKNOWN]
        ids.extend(row)
        ids.extend([PADDING] * (length - len(row)))
    return torch.frombuffer(ids, dtype=torch.int32).view(len(texts), length)


def continued(tokens: Tensor) -> Pair:
    """Inputs and the next token for each; padding is not a target."""
    targets = tokens[:, 1:].long()
    return tokens[:, :-1], targets.masked_fill(targets == PADDING, IGNORED)


class ClassifiedTexts(Dataset[Pair]):
    """Tokens and class by number; a list of numbers gives a batch at once."""

    def __init__(self, tokens: Tensor, labels: Tensor) -> None:
        self._tokens = tokens
        self._labels = labels

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, number: int) -> Pair:
        return self._tokens[number], self._labels[number]

    def __getitems__(self, numbers: list[int]) -> Pair:
        return self._tokens[numbers], self._labels[numbers]


class ContinuedTexts(Dataset[Pair]):
    """Tokens and the tokens that follow them by number; a list of numbers gives a batch at once."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, number: int) -> Pair:
        inputs, targets = self.__getitems__([number])
        return inputs[0], targets[0]

    def __getitems__(self, numbers: list[int]) -> Pair:
        return continued(self._tokens[numbers])


# ---- Loads a data set with Hugging Face's `datasets`, which downloads it if needed


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
