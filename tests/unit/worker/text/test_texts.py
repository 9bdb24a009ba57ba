"""Words and their ids, found once and alike everywhere, and texts as rows of ids."""

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from scalescope.worker import text
from scalescope.worker.text import (
    ClassifiedTexts,
    ContinuedTexts,
    Corpus,
    corpus_of,
    encode,
    most_frequent,
    vocabulary_of,
    words_of,
)
from tests.conftest import clean_environment
from tests.speed import patience

ROWS = [("b a a c", 0), ("A <br />b; d", 1)]


def corpus(rows: list[tuple[str, int]] = ROWS) -> Corpus:
    return corpus_of("made", rows, rows, 2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "scalescope"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Cat, the CAT!", ["the", "cat", "the", "cat"]),
        ("one<br />two<br>three<BR/>four", ["one", "two", "three", "four"]),
        ("It's $1.9 billion", ["it's", "1", "9", "billion"]),
        ("'quoted' snake_case", ["quoted", "snake", "case"]),
        ("Vlastimil Brodský", ["vlastimil", "brodský"]),
        (" \n…", []),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_ids_begin_after_padding_and_unknown(cache: Path) -> None:
    assert most_frequent(["b a a c", "a b d"], 3) == ["a", "b", "c"]
    assert vocabulary_of(corpus(), 5) == {"a": 2, "b": 3, "c": 4}
    assert vocabulary_of(corpus(), 100) == {"a": 2, "b": 3, "c": 4, "d": 5}


def test_a_vocabulary_is_found_once_for_each_size_and_corpus(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = vocabulary_of(corpus(), 5)
    (file,) = cache.glob("vocabulary-*.json")
    assert json.loads(file.read_text()) == ["a", "b", "c"]
    vocabulary_of(corpus(), 6)
    vocabulary_of(corpus([*ROWS, ("e", 0)]), 5)
    assert len(list(cache.glob("vocabulary-*.json"))) == 3
    monkeypatch.setattr(text, "most_frequent", None)  # whoever calls it now fails
    assert vocabulary_of(corpus(), 5) == first


@pytest.mark.parametrize("content", ["", "[1, 2]", '["a", "b", "c", "d", "e"]', '{"a": 2}', "\xff"])
def test_a_damaged_cache_is_rebuilt(cache: Path, content: str) -> None:
    expected = vocabulary_of(corpus(), 5)
    (file,) = cache.glob("vocabulary-*.json")
    file.write_bytes(content.encode("latin-1"))
    assert vocabulary_of(corpus(), 5) == expected
    assert json.loads(file.read_text()) == ["a", "b", "c"]


def test_without_a_writable_cache_the_vocabulary_is_built_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # a file is no folder, not even for root
    assert vocabulary_of(corpus(), 5) == {"a": 2, "b": 3, "c": 4}
    monkeypatch.setenv("XDG_CACHE_HOME", "here")  # relative
    monkeypatch.setenv("HOME", str(tmp_path))
    assert text.cache_folder() == tmp_path / ".cache" / "scalescope"


_IN_ANOTHER_ORDER = """
from scalescope.worker.text import corpus_of
from scalescope.worker.text import vocabulary_of
rows = [("b a c d e f g h", 0), ("h g f e d c b", 1)]
vocabulary_of(corpus_of("made", rows, rows, 2), 6)
"""


def test_it_is_the_same_whatever_order_python_hashes_in(tmp_path: Path) -> None:
    files = []
    for seed in ("1", "2"):
        environment = clean_environment(PYTHONHASHSEED=seed, XDG_CACHE_HOME=str(tmp_path / seed))
        command = [sys.executable, "-c", _IN_ANOTHER_ORDER]
        subprocess.run(command, env=environment, check=True, timeout=patience())
        (file,) = (tmp_path / seed / "scalescope").glob("vocabulary-*.json")
        files.append((file.name, file.read_bytes()))
    assert files[0] == files[1]


def _ask(answers: Any, begin: Any) -> None:
    begin.wait()
    vocabularies = []

    def counting(texts: Any, count: int) -> list[str]:
        vocabularies.append(count)
        return most_frequent(texts, count)

    text.most_frequent = counting
    answers.put((vocabulary_of(corpus([("a b", 0), ("b", 1)] * 2000), 4), len(vocabularies)))


def test_one_process_builds_it_while_the_others_wait(cache: Path) -> None:
    fork = multiprocessing.get_context("fork")
    answers, begin = fork.Queue(), fork.Barrier(3)
    processes = [fork.Process(target=_ask, args=(answers, begin)) for _ in range(3)]
    for process in processes:
        process.start()
    vocabularies = [answers.get(timeout=patience(30)) for _ in processes]
    for process in processes:
        process.join()
    assert [words for words, _ in vocabularies] == [{"b": 2, "a": 3}] * 3
    assert sorted(times for _, times in vocabularies) == [0, 0, 1]


WORDS = {"a": 2, "b": 3}


def test_texts_are_cut_padded_and_never_empty() -> None:
    tokens = encode(["A b", "a b a b", "zebra", "", "..."], WORDS, 3)
    assert tokens.dtype == torch.int32
    assert tokens.tolist() == [[2, 3, 0], [2, 3, 2], [1, 0, 0], [1, 0, 0], [1, 0, 0]]


def test_a_batch_at_once_is_what_single_samples_are() -> None:
    tokens = encode(["a b a", "b a", "b"], WORDS, 4)
    for data in (ClassifiedTexts(tokens, torch.tensor([0, 1, 0])), ContinuedTexts(tokens)):
        together = data.__getitems__([2, 0])
        alone = [data[2], data[0]]
        for part in (0, 1):
            assert torch.equal(together[part], torch.stack([sample[part] for sample in alone]))
        assert len(data) == 3


def test_next_tokens_are_no_padding() -> None:
    inputs, targets = ContinuedTexts(encode(["a b a", "b"], WORDS, 4)).__getitems__([0, 1])
    assert inputs.tolist() == [[2, 3, 2], [3, 0, 0]]
    assert targets.tolist() == [[3, 2, -100], [-100, -100, -100]]
