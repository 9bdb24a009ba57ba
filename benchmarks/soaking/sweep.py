"""A sweep that is killed and resumed until it is done."""

import contextlib
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from scalescope.results.run_folder import TRIALS
from soaking.checks import Key, stored_launches, whole_lines
from soaking.processes import MARK

_REST_S = 3.0


@dataclass(kw_only=True)
class Sweep:
    """A run folder with the command that fills it, resumed until it is done."""

    words: list[str]
    folder: Path
    mark: str
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    finished: set[Key] = field(default_factory=set)  # what was stored at any time
    _finished_then: int = 0  # when it lost a rank the last time
    _lost_rank_at: float = 0.0

    def start(self, directory: Path, environment: dict[str, str]) -> None:
        self.starts += 1
        resume = ["--resume"] if (self.folder / TRIALS).exists() else []
        words = [self.words[0], *resume, *self.words[1:]]
        with (directory / f"{self.mark}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scalescope", *words],
                cwd=directory,
                env={**environment, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def may_lose_rank(self, now: float) -> bool:
        """Some launches are to finish: ranks are killed after one has, or seconds after the last kill."""
        if len(self.finished) == self._finished_then and now < self._lost_rank_at + _REST_S:
            return False
        self._finished_then, self._lost_rank_at = len(self.finished), now
        return True

    def note_finished(self) -> None:
        """Remember what is stored now: it must be there at the end."""
        with contextlib.suppress(OSError):
            text = (self.folder / TRIALS).read_text(encoding="utf-8", errors="replace")
            self.finished.update(stored_launches(whole_lines(text)).finished)
