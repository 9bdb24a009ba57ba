"""What a setting is: its type, bounds, default and help, declared as a field of a card."""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from scalescope.catalog.code_lines import Code, ScriptContext
from scalescope.catalog.link import parse_link
from scalescope.errors import BadInput

Scalar = bool | int | float | str | None
Kind = Literal["bool", "int", "float", "str", "duration", "bytes", "env", "link"]

# Every value from a flag or a file is text first and parsed here: YAML's own guesses
# (`no` is False, `0777` is 511, `1:30` is 90) never reach a measurement.
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(ms|s|m|h)?")
_DURATION_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%?")
_BYTES = re.compile(r"([0-9]+)(?:([kKmMgGtT])(?:i?[bB])?|[bB])?")  # 1024 a step, as in nccl-tests
_TRUE = {"true", "yes", "on"}
_FALSE = {"false", "no", "off"}
_LONGEST_VALUE = 4096
SCRIPT = "script"  # the strategy of a training command, and the word for a value that its script decides
Words = tuple[str, ...]  # that may stand instead of a value of a kind


class Unset:
    """The type of UNSET, which stands where no value is named; None may be one."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


Need = Literal[
    "cpu",
    "cuda",
    "nccl",
    "ranks",
    "convolutions",
    "attention",
    "loader",
    "workers",
    "torchao",
    "ddp",
]
Change = Literal["nothing", "rounding", "the job"]
# Of a step: matrix products, convolutions, other kernels, the update of parameters, the host's work beside
# the device's, preparing batches, copying them, and the communication that nothing hides. What shortens
# products shortens convolutions as much, where a card does not say otherwise.
Part = Literal["products", "convolutions", "kernels", "optimizer", "host", "prepare", "copy", "communication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedEffect:
    """What a value of a lever usually does to parts of a step: their time after ÷ their time before.

    `tune` tries first what promises most by it; what it claims is measured. `source` says where the figures
    come from.
    """

    factors: typing.Mapping[Part, float]
    source: str
    value: "Scalar | Unset" = UNSET  # which means all values that no other entry names
    device: Literal["cpu", "cuda"] | None = None  # None: both
    # (setting, values): with any of them the factors of `together` hold besides.
    company: tuple[str, tuple[Scalar, ...]] | None = None
    together: typing.Mapping[Part, float] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """How `tune` may move a setting: values worth trying, where that makes sense, what it does to results.

    A lever that changes `the job` (the batch, the model's width) is compared by sample and never called a
    free speed-up; one that changes `rounding` trains to nearly the same loss.
    """

    # A function is asked when the values are needed, for instance the names of all strategies.
    tries: "tuple[Scalar | PerDevice, ...] | Callable[[], tuple[str, ...]]" = ()
    multiples: tuple[float, ...] = ()  # of the value it has, rounded down
    needs: tuple[Need, ...] = ()
    changes: Change = "nothing"
    starts_slowly: bool = False  # it compiles, for instance
    is_compiled_in: bool = False  # what was compiled for another value is of no use for this one
    in_bundle: tuple[Scalar, ...] = ()  # values that an expert sets at once, before anything is measured
    bundled_if_promising: bool = False  # only where the facts of the step say that it helps
    switches: tuple[Scalar, ...] = ()  # values that a running process can be moved between
    sets_processes: bool = False  # its value is the number of processes that prepare batches
    needs_new_ranks: bool = False  # what runs already cannot be moved: threads keep the cores they began on
    expects: tuple[ExpectedEffect, ...] = ()
    # Values that often fail, and what the usual cause is.
    fails_where: typing.Mapping[Scalar, str] = dataclasses.field(default_factory=dict)
    # Values that `all` leaves out, and why; naming the lever tries them.
    on_request: typing.Mapping[Scalar, str] = dataclasses.field(default_factory=dict)
    # What a value is in a user's script, relative to PyTorch's defaults.
    code: Callable[[Any, ScriptContext], Code] | None = None

    def tries_on(self, device: str) -> tuple[Scalar, ...]:
        """The values worth trying on a device."""
        tries = self.tries() if callable(self.tries) else self.tries
        return tuple(for_device(value, device) for value in tries)

    def code_of(self, value: Any, context: ScriptContext) -> Code | None:
        """What a value is in a script; None where the card does not say."""
        if self.code is not None:
            return self.code(value, context)
        if self.changes == "the job":
            return Code(instead="it changes the job: make the same change in your model or your data")
        return None

    def expected(self, value: Scalar, device: str) -> ExpectedEffect | None:
        """What a value usually does on a device; None where nobody knows."""
        here = [entry for entry in self.expects if entry.device in (None, device)]
        named = [entry for entry in here if entry.value is not UNSET and entry.value == value]
        others = [entry for entry in here if entry.value is UNSET]
        return next(iter((*named, *others)), None)


@dataclass(frozen=True, slots=True)
class PerDevice:
    """A default that differs between the CPU and a GPU."""

    cpu: Scalar
    cuda: Scalar


def for_device(value: Scalar | PerDevice, device: str) -> Scalar:
    """The value on `device`, which is cpu or cuda."""
    if isinstance(value, PerDevice):
        return value.cuda if device == "cuda" else value.cpu
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as flags, validation, help and trial identity see it."""

    name: str
    kind: Kind
    default: Scalar | PerDevice
    help: str
    card: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    none_word: str = "none"
    words: tuple[str, ...] = ()  # accepted instead of a value of its kind; Literal in the annotation
    sweep: bool = True
    internal: bool = False
    identity: bool = True  # False: trials that differ in it alone are the same trial
    aliases: tuple[str, ...] = ()
    opposite: str | None = None
    lever: Lever | None = None
    common: str | None = None  # the heading under which `VERB --help` lists it; None: --help-all lists it
    brief: str = ""  # what stands there, where the beginning of `help` is not enough
    holds_path: bool = False  # a file or folder, which commands shown to people write in full
    shortcut: tuple[str, Scalar] | None = None  # a switch, and the value that it stands for

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def default_for(self, device: str) -> Scalar:
        """The default on `device`, which is cpu or cuda."""
        return for_device(self.default, device)


def setting(
    default: Scalar | PerDevice,
    help: str,
    *,
    kind: Kind | None = None,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    none_word: str = "none",
    sweep: bool = True,
    internal: bool = False,
    identity: bool = True,
    aliases: tuple[str, ...] = (),
    opposite: str | None = None,
    lever: Lever | None = None,
    common: str | None = None,
    brief: str = "",
    holds_path: bool = False,
    shortcut: tuple[str, Scalar] | None = None,
) -> Any:
    """Declare a card's field; the arguments are those of `Setting`.

    There are many because this is the form in which settings are declared: each declaration names the few it
    needs, in one call, and grouping them would only add a level to every card.
    """
    details = dict(locals())
    return dataclasses.field(metadata=details)


def left_to_script(
    owner: type[Any],
    name: str,
    *,
    default: Scalar = None,
    not_tried: tuple[Scalar, ...] = (),
    **changes: Any,
) -> Any:
    """Declare a setting of another card for a training command; by default its script decides.

    The lever is the same, without the values that most scripts have anyway (`not_tried`) and with `changes`
    of its fields. `default` is for a setting that has a value that changes nothing.
    """
    details = dict(next(field.metadata for field in dataclasses.fields(owner) if field.name == name))
    lever: Lever = details["lever"]
    assert not callable(lever.tries) and lever.code is not None, f"{owner.__name__}.{name}"
    tries, code = tuple(value for value in lever.tries if value not in not_tried), lever.code

    def code_of(value: Any, context: ScriptContext) -> Code:
        return Code() if value is None else code(value, context)

    lever = dataclasses.replace(lever, tries=tries, code=code_of, **changes)
    return dataclasses.field(metadata={**details, "default": default, "none_word": SCRIPT, "lever": lever})


_SETTINGS: dict[type, tuple[Setting, ...]] = {}


def settings_of(card: type[Any]) -> tuple[Setting, ...]:
    """The settings a card declares, in the order written."""
    if card not in _SETTINGS:
        _SETTINGS[card] = tuple(
            _setting_of(card.__name__, field.name, field.type, dict(field.metadata))
            for field in dataclasses.fields(card)
        )
    return _SETTINGS[card]


def _setting_of(card: str, name: str, annotation: Any, details: dict[str, Any]) -> Setting:
    optional = False
    words: tuple[str, ...] = ()
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        parts = typing.get_args(annotation)
        words = tuple(
            word for part in parts if typing.get_origin(part) is Literal for word in typing.get_args(part)
        )
        plain = [part for part in parts if isinstance(part, type) and part is not types.NoneType]
        assert len(plain) == 1, f"{card}.{name}: a setting has one type, besides words and None"
        annotation, optional = plain[0], types.NoneType in parts
    assert details, f"{card}.{name}: declare a card's fields with setting()"
    kind = details.pop("kind") or annotation.__name__
    assert kind in typing.get_args(Kind), f"{card}.{name}: {annotation}: use str with choices=()"
    return Setting(name=name, card=card, kind=kind, optional=optional, words=words, **details)


def parse_value(setting: Setting, text: str, origin: str) -> Scalar:
    """Read one value of a setting from the text of a flag or a file; `origin` is where it was written."""
    text = text.strip()
    if len(text) > _LONGEST_VALUE:
        raise BadInput(f"{origin}: a value has at most {_LONGEST_VALUE} characters, got {len(text)}")
    if setting.optional and text.lower() in {setting.none_word, "null", "~"}:
        return None
    if text.lower() in setting.words:
        return text.lower()
    spoken = (setting.none_word,) if setting.optional and setting.none_word != "none" else ()
    words = (*setting.words, *spoken)
    value = _PARSERS[setting.kind](text, origin, words)
    return check_value(setting, value, origin)


def check_value(setting: Setting, value: Scalar, origin: str) -> Scalar:
    """Refuse a value outside the setting's choices or bounds."""
    if setting.choices and value not in setting.choices:
        hint = nearest(str(value), setting.choices)
        raise BadInput(f"{origin}: must be one of {', '.join(setting.choices)}, got {value!r}{hint}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if setting.low is not None and value < setting.low:
            raise BadInput(f"{origin}: must be at least {setting.low:.15g}, got {value:.15g}")
        if setting.high is not None and value > setting.high:
            raise BadInput(f"{origin}: must be at most {setting.high:.15g}, got {value:.15g}")
    return value


def threshold_from(text: str, origin: str) -> float:
    """The share of a percentage such as 3%."""
    match = _PERCENT.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or not 0.0 < float(match[1]) < 100.0:
        raise BadInput(f"{origin}: expected a percentage such as 3%, got {text!r}")
    return float(match[1]) / 100.0


def nearest(word: str, candidates: typing.Iterable[str]) -> str:
    """`; did you mean X?` when some candidate looks like `word`, otherwise nothing."""
    import difflib

    close = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _parse_int(text: str, origin: str, words: Words) -> int:
    if len(text) <= 40 and _WHOLE.fullmatch(text):
        return int(text)
    if len(text) <= 40 and _NUMBER.fullmatch(text) and "e" in text.lower():
        number = float(text)
        if math.isfinite(number) and number.is_integer():
            return int(number)
    raise _unexpected("a whole number", text, origin, words)


def _parse_float(text: str, origin: str, words: Words) -> float:
    if len(text) <= 40 and _NUMBER.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return number
    raise _unexpected("a finite number", text, origin, words)


def _parse_bool(text: str, origin: str, words: Words) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise _unexpected("true or false", text, origin, words)


def _parse_str(text: str, origin: str, words: Words) -> str:
    if not text or not text.isprintable():
        raise _unexpected("a printable word", text, origin, words)
    return text


def _parse_duration(text: str, origin: str, words: Words) -> float:
    match = _DURATION.fullmatch(text) if len(text) <= 40 else None
    seconds = float(match[1]) * _DURATION_UNITS[match[2]] if match else math.inf
    if not math.isfinite(seconds):
        raise _unexpected("a time such as 90s, 10m or 2h", text, origin, words)
    return seconds


def _parse_bytes(text: str, origin: str, words: Words) -> int:
    match = _BYTES.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        raise _unexpected("a size such as 8, 64K, 32M or 1GiB", text, origin, words)
    power = " KMGT".index((match[2] or " ").upper())
    return int(match[1]) << (10 * power)


def shown(text: str) -> str:
    """A value in a message: on one line, and not too long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _parse_link(text: str, origin: str, words: Words) -> str:
    return parse_link(text, origin)


def _unexpected(wanted: str, text: str, origin: str, words: Words) -> BadInput:
    """What a value must be: of its kind, or one of the words that may stand instead."""
    *others, last = (wanted, *words)
    expected = f"{', '.join(others)} or {last}" if others else last
    return BadInput(f"{origin}: expected {expected}, got {shown(text)}{nearest(text.lower(), words)}")


_PARSERS: dict[str, typing.Callable[[str, str, Words], Scalar]] = {
    "int": _parse_int,
    "float": _parse_float,
    "bool": _parse_bool,
    "str": _parse_str,
    "duration": _parse_duration,
    "bytes": _parse_bytes,
    "link": _parse_link,
}
