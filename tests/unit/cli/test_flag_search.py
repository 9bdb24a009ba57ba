"""`scalescope settings`: every flag is found, by its name and by what is said about it."""

import json

import pytest

from scalescope.cli import app
from scalescope.cli.flag_search import all_flags, search, suggestion

FLAGS = all_flags()


def names(*words: str) -> list[str]:
    return [flag.name for flag in search(FLAGS, words)]


def test_nothing_asked_lists_all() -> None:
    assert search(FLAGS, ()) == FLAGS
    assert {"precision", "amp", "levers", "resume", "nodes", "memory_limit", "pairs"} <= set(names())


@pytest.mark.parametrize("word", ["bucket-cap-mb", "--bucket-cap-mb", "bucket_cap_mb", "BUCKET_CAP"])
def test_a_name_is_found_however_it_is_written(word: str) -> None:
    assert names(word)[0] == "bucket_cap_mb"


def test_names_come_before_texts() -> None:
    assert names("bucket")[:2] == ["bucket_cap_mb", "gradient_as_bucket_view"]
    assert "precision" in names("autocast")
    assert "accumulation_steps" not in names("amp")  # inside another word of its text


def test_choices_and_cards_are_searched() -> None:
    assert "precision" in names("tf32")
    assert "max_seq_len" in names("workload", "transformer")


def test_a_setting_knows_its_cards_verbs_and_defaults() -> None:
    (bucket,) = (flag for flag in FLAGS if flag.name == "bucket_cap_mb")
    assert bucket.cards == ("Strategy ddp", "Strategy scratch_ddp", "Strategy zero1", "Strategy script")
    assert "comm" not in bucket.verbs
    (repeats,) = (flag for flag in FLAGS if flag.name == "repeats")
    assert (repeats.defaults["train"], repeats.defaults["scale"]) == (1, 5)


@pytest.mark.parametrize(("word", "hint"), [("presicion", "precision"), ("buckit", "bucket"), ("zzzzzz", "")])
def test_a_misspelt_word_gets_a_suggestion(word: str, hint: str) -> None:
    assert suggestion(FLAGS, (word,)) == (f"; did you mean {hint}?" if hint else "")


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        app.main(["settings", "precision", "--json"])
    assert leaving.value.code == 0
    first, *_ = json.loads(capsys.readouterr().out)
    assert (first["name"], first["key"]) == ("precision", "precision")
    assert first["choices"] == ["fp32", "tf32", "bf16", "fp16"]
