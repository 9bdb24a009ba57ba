"""Position: a rank's heartbeat, updated at every stage and step."""

from pathlib import Path

from scalescope.results.ranks import Beat, Heartbeats, Phase, RankStage


class Position:
    """The stage and step of this rank; published if there is a heartbeat file."""

    def __init__(self, file: Path | None, rank: int, world_size: int) -> None:
        self._slots = Heartbeats(file, world_size) if file else None
        self._rank = rank
        self.slowest_warmup_s = 0.0
        self._planned = 0
        self.stage = RankStage.STARTING
        self.completed = 0
        self.begun = 0
        self.phase = int(Phase.INPUT)

    @property
    def progress(self) -> tuple[int, int, int, int]:
        """Orders ranks: the lowest is the one that the others wait for."""
        return int(self.stage), self.completed, self.begun, self.phase

    def plan(self, steps: int) -> None:
        """Publish how many steps there will be; the launcher does not know the length of a data set."""
        self._planned = steps

    def enter(self, stage: RankStage, *, slowest_warmup_s: float | None = None) -> None:
        """Begin a stage of the rank's life."""
        self.stage = stage
        if slowest_warmup_s is not None:
            self.slowest_warmup_s = slowest_warmup_s
        if self._slots is not None:
            beat = Beat(self.completed, self.begun, stage, Phase.INPUT, self.slowest_warmup_s, self._planned)
            self._slots.write(self._rank, beat)

    def begin_step(self, steps: int = 1) -> None:
        self.begun += steps
        self.mark(Phase.INPUT)

    def mark(self, phase: int) -> None:
        """Publish which phase of the current step begins."""
        self.phase = phase
        if self._slots is not None:
            self._slots.write_position(self._rank, self.completed, self.begun, phase)
