"""The profile of a script on one rank: what its step consists of, from the last steps of its warm-up."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import nn

from scalescope.worker.attach.recording.phases import StepPhases
from scalescope.worker.process.rank import describe_error
from scalescope.worker.rank_profile.marks import StepMarks, marked_gradients
from scalescope.worker.rank_profile.moments import moments_of
from scalescope.worker.rank_profile.stored_profile import FAILED, StoredProfile, stored_profile
from scalescope.worker.rank_profile.timed_steps import timed_step, typical_step
from scalescope.worker.trace.profiled_steps import WARMUPS


class ScriptProfile:
    """Marks steps between `begin` and `end`; a failure costs the profile, never the measurement."""

    def __init__(
        self, device: torch.device, modules: Sequence[nn.Module], parameters: Sequence[torch.Tensor]
    ) -> None:
        self._marks = StepMarks(moments_of(device))
        self._modules = modules
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._installed = ExitStack()
        self._failure: str | None = None
        self.phases = StepPhases(self._marks.part, modules)

    def begin(self) -> None:
        """The next step is the first with hooks."""
        self._guarded(self._install)

    def end_step(self) -> None:
        """A step of the script has ended."""
        if self._failure is None:
            self._guarded(self.phases.end_step)

    def end(self) -> None:
        """Leave the script as it was; may be called again."""
        self._guarded(self._installed.close)

    def stored(self) -> StoredProfile:
        """The counters and tables for the rank record, or why there are none."""
        profile = StoredProfile()

        def read() -> None:
            nonlocal profile
            steps = [timed_step(marked) for marked in self._marks.read()[WARMUPS:]]
            profile = stored_profile(typical_step(steps), len(steps), self._parameters, None)
            profile.counters["profile/buffer_bytes"] = self._buffer_bytes()

        if self._failure is None:
            self._guarded(read)
        return profile if self._failure is None else StoredProfile(counters={FAILED: self._failure})

    def _install(self) -> None:
        self._marks.begin()
        self._installed.enter_context(marked_gradients(self._parameters, self._marks))
        self._installed.enter_context(self.phases.installed())

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._failure = str(describe_error(error)["message"])

    def _buffer_bytes(self) -> int:
        buffers = {id(buffer): buffer for module in self._modules for buffer in module.buffers()}
        return sum(buffer.numel() * buffer.element_size() for buffer in buffers.values())
