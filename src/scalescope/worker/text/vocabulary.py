"""Words and their ids: collected from the training texts once, cached, equal on every rank."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from scalescope.errors import StorageError
from scalescope.results.files import write_atomically
from scalescope.worker.text.corpus import Corpus

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
