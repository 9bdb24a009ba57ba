"""The lines of PyTorch that do in a user's script what levers did in the measurement."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.analysis.commands import OBSERVED_SETTINGS
from scalescope.catalog.cards import all_settings, card
from scalescope.catalog.code_lines import PARTS, Code, CodeLine, ScriptContext, ScriptPart
from scalescope.catalog.setting import Setting
from scalescope.experiment.trial import Trial, Value
from scalescope.report.section import Section
from scalescope.results.run import Run
from scalescope.results.run_folder import TUNING, read_json

Changes = Mapping[str, tuple[Value, Value]]  # setting → (value before, value now)

_TITLE = "In your own script"
_NOT_DECLARED = "its card has no code for a script"
_LOOP_PARTS: tuple[ScriptPart, ...] = (
    *("loop", "copy", "batch", "before_forward", "forward", "loss"),
    *("backward", "gradients", "update", "clear"),
)
_CALLS: Mapping[ScriptPart, str] = {
    "wrapper": "model = DistributedDataParallel(model, ..., {})",
    "optimizer": "optimizer = torch.optim.AdamW(model.parameters(), ..., {})  # or the one you use",
    "loader": "loader = DataLoader(dataset, ..., {})",
}
_HEADINGS: Mapping[ScriptPart, str] = {
    "shell": "In the shell, before the script starts",
    "imports": "Imports",
    "definitions": "Functions that are used below",
    "start": "At the start, before the model is made",
    "model": "When the model is on its device, before anything wraps it",
    "wrapper": "Arguments of DistributedDataParallel",
    "wrapped": "After DistributedDataParallel",
    "optimizer": "Arguments of the optimizer",
    "loader": "Arguments of the DataLoader",
    "before_loop": "Before the loop, when model, optimizer and loader are made",
}
_ABOVE_LOOP = "# In the loop, besides what you have there; compute_loss(batch) is your forward pass and loss"
_FORWARD = "loss = compute_loss(batch)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverCode:
    """A setting that moved: the lines to add and to remove, or in a sentence what does the same."""

    setting: str
    old: Value
    new: Value
    added: tuple[CodeLine, ...] = ()
    removed: tuple[CodeLine, ...] = ()
    instead: str | None = None

    @property
    def text(self) -> str:
        """The setting and its value."""
        if isinstance(self.new, Mapping):
            return f"{self.setting} {' '.join(f'{name}={value}' for name, value in self.new.items())}"
        return f"{self.setting} {'none' if self.new is None else self.new}"


def changes_between(baseline: Trial, winner: Trial) -> Changes:
    """The settings that both trials have, at different values."""
    before = baseline.settings
    return {
        name: (before[name], value)
        for name, value in winner.settings.items()
        if name in before and before[name] != value and name not in OBSERVED_SETTINGS
    }


def context_of(trial: Trial) -> ScriptContext:
    """What the lines for a trial depend on besides its levers."""
    return ScriptContext(
        device="cuda" if trial.on_gpu else "cpu", world_size=trial.world_size, strategy=trial.strategy
    )


def code_section(changes: Changes, context: ScriptContext) -> Section:
    """What to put into one's own script for exactly these changes."""
    codes = lever_codes(changes, context)
    notes = [f"Remove: {line.source}" for lever in codes for line in lever.removed]
    notes += [f"{lever.text}: no line of PyTorch; {lever.instead}." for lever in codes if lever.instead]
    return Section(title=_TITLE, code=snippet(codes, context), lines=tuple(notes))


def stored_code(run: Run) -> tuple[Section, ...]:
    """The lines that a run of `tune` stored for the settings that it recommends, if any."""
    tuning = read_json(run.path / TUNING)
    text = tuning.get("script") if isinstance(tuning, dict) else None
    return (Section(title=_TITLE, code=text),) if isinstance(text, str) else ()


def code_json(changes: Changes, context: ScriptContext) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "setting": lever.setting,
            "old": lever.old,
            "new": lever.new,
            "lines": [{"part": line.part, "code": line.source} for line in lever.added],
            "remove": [{"part": line.part, "code": line.source} for line in lever.removed],
            "instead": lever.instead,
        }
        for lever in lever_codes(changes, context)
    ]


def lever_codes(changes: Changes, context: ScriptContext) -> tuple[LeverCode, ...]:
    """Every change with its lines, in the order in which ranks apply levers."""
    known = all_settings("train")
    settings = {name: _version(known[name], context) for name in known}
    moved = {name: settings[name] for name in settings if name in changes}
    new = {name: _code_of(setting, changes[name][1], context) for name, setting in moved.items()}
    decided = {line.target for code in new.values() for line in code.lines}
    return tuple(
        _lever_code(name, changes[name], _code_of(setting, changes[name][0], context), new[name], decided)
        for name, setting in moved.items()
    )


def _lever_code(
    name: str, values: tuple[Value, Value], old: Code, new: Code, decided: set[tuple[ScriptPart, str]]
) -> LeverCode:
    replaced = () if new.instead else old.lines
    return LeverCode(
        setting=name,
        old=values[0],
        new=values[1],
        added=tuple(line for line in new.lines if line not in old.lines),
        removed=tuple(line for line in replaced if line.target not in decided and _is_visible(line)),
        instead=new.instead,
    )


def _is_visible(line: CodeLine) -> bool:
    """Whether a line has an effect of its own; a replacement goes when what it replaced comes back."""
    return line.part not in ("imports", "definitions") and PARTS[line.part] != "replacement"


def _version(versions: Sequence[Setting], context: ScriptContext) -> Setting:
    """The setting as the card of the strategy declares it, or the first that is a lever."""
    preferred = card("strategies", context.strategy).__name__
    return min(versions, key=lambda version: (version.card != preferred, version.lever is None))


def _code_of(setting: Setting, value: Value, context: ScriptContext) -> Code:
    code = None if setting.lever is None else setting.lever.code_of(value, context)
    return Code(instead=_NOT_DECLARED) if code is None else code


def by_part(lines: Iterable[CodeLine]) -> dict[ScriptPart, list[CodeLine]]:
    """The lines of each part that has some, in the order of a script; of two for one target the later."""
    unique = {line.target: line for line in lines}.values()
    groups = {part: [line for line in unique if line.part == part] for part in PARTS}
    groups["forward"].reverse()  # what is applied last is outermost
    return {part: group for part, group in groups.items() if group}


def snippet(codes: Iterable[LeverCode], context: ScriptContext) -> str:
    """The lines as a piece of Python, each part below a comment that says where it goes."""
    groups = by_part(line for lever in codes for line in lever.added)
    blocks = [_block(part, group) for part, group in groups.items() if part in _HEADINGS]
    if any(part in groups for part in (*_LOOP_PARTS, "before_loop")):
        copy = "batch = [{} for tensor in batch]" if context.device == "cuda" or "copy" in groups else None
        loader = "".join(f"{line.text}(" for line in groups.get("loop", ())) + "loader"
        closing = ")" * len(groups.get("loop", ()))
        loop = f"for batch in {loader}{closing}:\n{textwrap.indent(loop_body(groups, copy), '    ')}"
        blocks.append(f"{_ABOVE_LOOP}\n{loop}")
    return "\n\n".join(blocks)


def _block(part: ScriptPart, group: Sequence[CodeLine]) -> str:
    if part == "shell":
        body = "\n".join(f"#   export {line.source}" for line in group)
    elif part in _CALLS:
        body = _CALLS[part].format(arguments(group))
    else:
        body = ("\n\n\n" if part == "definitions" else "\n").join(line.text for line in group)
    return f"# {_HEADINGS[part]}\n{body}"


def arguments(group: Iterable[CodeLine]) -> str:
    """Keyword arguments as a call has them."""
    return ", ".join(line.source for line in group)


def loop_body(groups: Mapping[ScriptPart, Sequence[CodeLine]], copy: str | None) -> str:
    """What a training loop does with `batch`; `copy` is the statement that copies it, with {} per tensor."""

    def texts(part: ScriptPart, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        return tuple(line.text for line in groups.get(part, ())) or default

    contexts = ", ".join(texts("forward"))
    to_device = f"tensor.to({', '.join(('device', *(line.source for line in groups.get('copy', ()))))})"
    copies = () if copy is None or "loop" in groups else (copy.format(to_device),)
    return "\n".join(
        (
            *copies,
            *texts("batch"),
            *texts("before_forward"),
            f"with {contexts}:\n    {_FORWARD}" if contexts else _FORWARD,
            *texts("loss"),
            *texts("backward", ("loss.backward()",)),
            *texts("gradients"),
            *texts("update", ("optimizer.step()",)),
            f"optimizer.zero_grad({arguments(groups.get('clear', ()))})",
        )
    )
