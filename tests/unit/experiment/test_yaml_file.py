"""Experiment files: what is read, and the one line that refuses each kind of bad file."""

import errno
import os
import re
from pathlib import Path

import pytest
import yaml

from scalescope.errors import BadInput
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.given import Entries, shown_key
from scalescope.experiment.yaml_file import read_experiment_file


def read(folder: Path, content: str | bytes) -> Entries:
    path = folder / "e.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_experiment_file(path)


def texts(entries: Entries) -> dict[str, list[str]]:
    return {name: [entry.text for entry in values] for name, values in entries.items()}


def refusal(folder: Path, content: str | bytes) -> str:
    """The refusal of a file without its folder; it is one printable line with exit code 2."""
    with pytest.raises(BadInput) as caught:
        build_experiment("train", "train", read(folder, content), {}, {})
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 500
    assert caught.value.exit_code == 2
    assert message.startswith(f"{folder}/")
    return message.removeprefix(f"{folder}/")


def test_scalars_and_lists_are_kept_as_text(tmp_path: Path) -> None:
    entries = read(
        tmp_path, "world_size: [1, 2]\nlr: 1e3\nname: no\nseed: 0777\nbudget: 1:30\nstrategy:\n- ddp\n"
    )
    assert texts(entries) == {
        "world_size": ["1", "2"],
        "lr": ["1e3"],
        "name": ["no"],
        "seed": ["0777"],
        "budget": ["1:30"],
        "strategy": ["ddp"],
    }
    assert texts(read(tmp_path, b"\xef\xbb\xbfepochs: 3\r\nseed: 1\r\n")) == {"epochs": ["3"], "seed": ["1"]}
    assert texts(read(tmp_path, "name: 'no'\nworkload: \"mlp\"\n")) == {"name": ["no"], "workload": ["mlp"]}


def test_every_value_knows_its_file_line_and_key(tmp_path: Path) -> None:
    entries = read(tmp_path, "# a comment\nepochs: 3\nworld_size:\n  - 1\n  - 2\n")
    assert [entry.origin for entry in entries["epochs"]] == [f"{tmp_path}/e.yaml:2: epochs"]
    assert [entry.origin for entry in entries["world_size"]] == [
        f"{tmp_path}/e.yaml:4: world_size",
        f"{tmp_path}/e.yaml:5: world_size",
    ]


def test_groups_only_order_the_file_and_env_is_a_mapping_of_names(tmp_path: Path) -> None:
    grouped = "model:\n  hidden_dim: 8\ntraining:\n  epochs: [1, 2]\ndata: {seed: 3}\nworld_size: 2\n"
    flat = "hidden_dim: 8\nepochs: [1, 2]\nseed: 3\nworld_size: 2\n"
    assert texts(read(tmp_path, grouped)) == texts(read(tmp_path, flat))
    entries = read(tmp_path, "env:\n  NCCL_ALGO: [Ring, Tree]\n  EMPTY: ''\n  model: x\n")
    assert texts(entries) == {"env.NCCL_ALGO": ["Ring", "Tree"], "env.EMPTY": [""], "env.model": ["x"]}


NESTED_BLOCKS = "".join(f"{' ' * depth}model:\n" for depth in range(1000))
ALIAS_BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)

BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "malformed": ("epochs: 1\nseed: [1, 2\nlr: 3\n", r"e.yaml:\d: not valid YAML: .+"),
    "malformed colon": ("epochs: 1\nseed: 1: 2\n", r"e.yaml:2: not valid YAML: .+"),
    "tab indent": ("model:\n\thidden_dim: 8\n", r"e.yaml:2: not valid YAML: found character '\\t' .+"),
    "empty": ("", r"e.yaml: the file is empty; expected lines such as 'world_size: \[1, 2\]'"),
    "empty mapping": ("{}\n", r"e.yaml: the file contains no settings"),
    "null root": ("null\n", r"e.yaml:1: expected 'key: value' lines at the top level"),
    "list root": ("\n- 1\n- 2\n", r"e.yaml:2: expected 'key: value' lines at the top level"),
    "not UTF-8": (b"name: caf\xe9\n", r"e.yaml: not UTF-8 text \(byte 9\)"),
    "control character": ("name: a\0b\n", r"e.yaml: not valid YAML: unacceptable character #x0000.*"),
    "unknown key in a group": (
        "model:\n  hiden_dim: 3\n",
        r"e.yaml:2: unknown key hiden_dim; did you mean hidden_dim\?",
    ),
    "unknown key with a colon": ("'a:b': 3\n", r"e.yaml:1: unknown key a:b"),
    "empty key": ("'': 3\n", r"e.yaml:1: unknown key ''"),
    "internal key": ("ablation: none\n", r"e.yaml:1: unknown key ablation"),
    "unknown group": (
        "modle:\n  epochs: 1\n",
        r"e.yaml:1: modle: only model, training, data, env, vary may contain keys",
    ),
    "group in a group": ("model:\n  data:\n    seed: 1\n", r"e.yaml:2: data: only model, .+"),
    "mapping in env": ("env:\n  A:\n    b: 1\n", r"e.yaml:2: A: only model, .+"),
    "merge key": ("<<: {epochs: 1}\n", r"e.yaml:1: <<: only model, .+"),
    "scalar as group": ("model: mlp\n", r"e.yaml:1: model: expected 'key: value' lines below it"),
    "duplicate key": (
        "seed: 1\nepochs: 1\nseed: 2\n",
        r"e.yaml:3: seed: given twice \(first at .*e.yaml:1: seed\)",
    ),
    "duplicate key across groups": (
        "seed: 1\ndata:\n  seed: 2\n",
        r"e.yaml:3: seed: given twice \(first at .+\)",
    ),
    "duplicate group": ("model: {hidden_dim: 8}\nmodel: {num_layers: 2}\n", r"e.yaml:2: model: given twice"),
    "python object": (
        "name: !!python/object/apply:os.system ['true']\n",
        r"e.yaml:1: tags \('.*os.system'\) are not allowed",
    ),
    "escape codes in a tag": ("name: !%1B%5B31m%0Ax 3\n", r"e.yaml:1: tags \(.+\) are not allowed"),
    "alias bomb": (ALIAS_BOMB, r"e.yaml:1: anchors and aliases are not allowed"),
    "alias": ("name: *x\n", r"e.yaml:1: anchors and aliases are not allowed"),
    "deep lists": (
        "seed: " + "[" * 5000 + "]" * 5000,
        r"e.yaml:1: seed: a list may contain plain values only",
    ),
    "deep root list": ("[" * 500, r"e.yaml:1: expected 'key: value' lines at the top level"),
    "deep mappings": ("{model: " * 5000, r"e.yaml:1: model: only model, .+"),
    "deep blocks": (NESTED_BLOCKS, r"e.yaml:2: model: only model, .+"),
    "list as key": ("? [1, 2]\n: 3\n", r"e.yaml:1: expected a plain word as key"),
    "mapping in a list": ("seed:\n- a: 1\n", r"e.yaml:2: seed: a list may contain plain values only"),
    "second document": ("seed: 1\n---\nseed: 2\n", r"e.yaml:2: expected one YAML document, found a second"),
    "no value": ("seed:\nepochs: 1\n", r"e.yaml:1: seed: has no value"),
    "no value in a list": ("seed: [1, ,2]\n", r"e.yaml:1: .+"),
    "empty list": ("epochs: 1\nseed: []\n", r"e.yaml:2: seed: the list is empty"),
    "duplicate values": ("seed:\n- 1\n- 2\n- 1e0\n", r"e.yaml:4: seed: 1 is given twice"),
    "escape codes in a key": ('"\\e[31m\\nx":\n', r"e.yaml:1: '\\x1b\[31m\\nx': has no value"),
    "no such character": ('name: "\\U00110000"\n', r"e.yaml: not valid YAML: .+"),
    "endless YAML version": (f"%YAML 1.{'9' * 5000}\n---\nseed: 1\n", r"e.yaml: not valid YAML: .+"),
    "other YAML version": ("%YAML 2.0\n---\nseed: 1\n", r"e.yaml:1: not valid YAML: .+"),
    "wrong type: word": ("epochs: many\n", r"e.yaml:1: epochs: expected a whole number, got 'many'"),
    "zero ranks": ("world_size: [1, 0]\n", r"e.yaml:1: world_size: must be at least 1, got 0"),
    "list for the run": ("repeats: [1, 2]\n", r"e.yaml:1: repeats: expected one value, got 2"),
    "unknown strategy": (
        "strategy:\n- auto\n- dpp\n",
        r"e.yaml:3: strategy: unknown strategy 'dpp'; .+ did you mean ddp\?",
    ),
    "too large": ("# " + "x" * (1 << 20) + "\nseed: 1\n", r"e.yaml: .* at most 1048576 bytes, got \d+"),
}


@pytest.mark.parametrize(("content", "expected"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, content: str | bytes, expected: str) -> None:
    message = refusal(tmp_path, content)
    assert re.fullmatch(expected, message), message


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=rf"^{re.escape(str(tmp_path))}: not a regular file$"):
        read_experiment_file(tmp_path)
    path = tmp_path / "fifo.yaml"
    os.mkfifo(path)
    with pytest.raises(BadInput, match=rf"^{re.escape(str(path))}: not a regular file$"):
        read_experiment_file(path)
    path = tmp_path / "none.yaml"
    with pytest.raises(BadInput, match=rf"^{re.escape(str(path))}: No such file or directory$"):
        read_experiment_file(path)


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal of the system is made up, since file modes do not stop the superuser."""

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    path = tmp_path / "e.yaml"
    path.write_text("seed: 1\n")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(BadInput, match=rf"^{re.escape(str(path))}: Permission denied$"):
        read_experiment_file(path)


def test_keys_are_shown_on_one_short_line() -> None:
    names = {"seed": "seed", "": "''", "a\nb": r"'a\nb'", "x" * 61: "'" + "x" * 59}
    assert {name: shown_key(name) for name in names} == names


def test_data_is_a_setting_where_it_has_a_value_and_a_name_the_models_below_model(tmp_path: Path) -> None:
    assert texts(read(tmp_path, "data: ag_news\n")) == {"data": ["ag_news"]}
    assert texts(read(tmp_path, "data: [synthetic, ag_news]\n")) == {"data": ["synthetic", "ag_news"]}
    entries = read(tmp_path, "name: mine\nmodel:\n  name: mlp\nenv:\n  name: x\n")
    assert texts(entries) == {"name": ["mine"], "workload": ["mlp"], "env.name": ["x"]}


@pytest.mark.parametrize("key", ["data", "name"])
def test_data_is_a_heading_where_lines_stand_below_it(tmp_path: Path, key: str) -> None:
    entries = read(tmp_path, f"data:\n  {key}: ag_news\n  num_workers: 2\n")
    assert texts(entries) == {"data": ["ag_news"], "num_workers": ["2"]}
    assert entries["data"][0].origin == f"{tmp_path}/e.yaml:2: data"


def test_data_given_twice_or_without_a_value_is_refused(tmp_path: Path) -> None:
    for content in (
        "data: synthetic\ndata:\n  num_workers: 2\n",
        "data:\n  num_workers: 2\ndata: synthetic\n",
        "data:\n  data: synthetic\n  name: synthetic\n",
        "data: synthetic\ndata: ag_news\n",
    ):
        assert re.match(r"e.yaml:\d: (data|name): given twice", refusal(tmp_path, content))
    assert refusal(tmp_path, "data:\nseed: 1\n") == "e.yaml:1: data: has no value"


def test_long_lists_and_many_keys_are_refused_by_their_number(tmp_path: Path) -> None:
    values = ", ".join(["x"] * 20_001)
    assert refusal(tmp_path, f"hidden_dim: [{values}]\n") == (
        "e.yaml:1: hidden_dim: the list has more than 20,000 values"
    )
    keys = "".join(f"key{number}: 1\n" for number in range(1_001))
    assert refusal(tmp_path, keys) == "e.yaml:1001: key1000: an experiment file has at most 1,000 keys"


_ANY = (
    "world_size: [1, 2]\nmodel:\n  hidden_dim: 8\nname: ''\n",
    "lr: 1e3 # a comment\nname: 'it''s'\nbudget: \"a\\tb\"\nenv:\n  A: 1\n  B: |\n    two\n    lines\n",
    "batch_size:\n- 4\n-   8\nname: >\n  folded\n  text\n",
    "seed:\nlr: 1\n",
    "a: b: c\n",
    "lr: [1\n",
    "lr: &x 1\n",
    'name: "\\U00110000"\n',
    "name: \x07\n",
)


@pytest.mark.parametrize("content", _ANY)
def test_the_fast_parser_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """Where PyYAML was built without its parser in C, files mean the same and errors read the same."""

    def answer() -> Entries | str:
        try:
            return read(tmp_path, content)
        except BadInput as error:
            return str(error)

    with_any = answer()
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert with_any == answer()
