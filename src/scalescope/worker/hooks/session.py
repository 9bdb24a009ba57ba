"""A session: everything that scalescope does inside one process of a training command."""

import atexit
import contextlib
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from scalescope import steps
from scalescope.errors import BadInput
from scalescope.experiment.explanations import NO_COMM, PRELOADED, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.private_view import changed_files
from scalescope.results.ranks import OBSERVED, REMAINING, SUPPRESSED, WRITTEN, AttachJob
from scalescope.results.result import EVENTS, LARGEST_PARAMETERS
from scalescope.results.traces.events import OPTIMIZER
from scalescope.worker.engine.explaining import is_try
from scalescope.worker.engine.profiling import ProfiledModel
from scalescope.worker.engine.recording import is_recorded
from scalescope.worker.hooks.events import ScriptEvents, Trackers
from scalescope.worker.hooks.hook_guard import HookGuard
from scalescope.worker.hooks.imports import after_import, forget_imports
from scalescope.worker.hooks.inputs import ModelInputs
from scalescope.worker.hooks.levers import ScriptLevers, already_there
from scalescope.worker.hooks.loaders import ARGUMENTS, ScriptLoaders
from scalescope.worker.hooks.losses import ScriptLosses
from scalescope.worker.hooks.measuring import Counters, ScriptMeasuring
from scalescope.worker.hooks.optimizers import MOST_EVENTS, OptimizerEvents, StepEnds
from scalescope.worker.hooks.parts import BackwardTime, StepParts, StepPhases
from scalescope.worker.hooks.process_file import ProcessFile
from scalescope.worker.hooks.ranks import SendsToRanks, averaging_ranks, cut_ranks, input_hash
from scalescope.worker.hooks.wrappers import Wrappers, kind_of
from scalescope.worker.training.ddp_logging import largest_parameters
from scalescope.worker.training.ranges import RangeOf

_APERIODIC = (
    "the script's optimizers are not stepped in a repeating order, so its steps cannot be counted; add "
    "`import scalescope` and `scalescope.step()` at the end of its step, or --step-at MODULE:FUNCTION"
)
_REPLAYING_GRAPHS = ("reduce-overhead", "max-autotune")  # modes of compilation that use CUDA graphs


class Session:
    """Installed when torch has been imported; measures once optimizers are stepped."""

    def __init__(self, job: AttachJob, process: ProcessFile) -> None:
        self._job, self._process = job, process
        trial = Trial(settings=job.settings)
        self._trial = trial
        settings = job.settings
        self._keeps_running = trial.keeps_running
        self._guard = HookGuard(self.fail)
        self._optimizers = OptimizerEvents(self._on_optimizer_step, self._guard)
        self._inputs = ModelInputs(self._guard)
        self._loaders = ScriptLoaders(
            {name: settings.get(name) for name in ARGUMENTS},
            self._guard,
            preloads=has_ablation(trial, PRELOADED),
        )
        self._wrappers = Wrappers(settings, self._guard, silent=has_ablation(trial, NO_COMM))
        self._levers = ScriptLevers(settings)
        # What ends steps, counted since the script began: optimizer steps, and its own marks.
        self._position: Callable[[], tuple[int, ...]] = partial(
            attrgetter("_optimizers.events", "_optimizers.skipped", "_marks"), self
        )
        self._losses = ScriptLosses(self._position, copies=settings.get("compile") in _REPLAYING_GRAPHS)
        self._already: dict[str, Any] = {}  # what the script does of what levers would do
        self._sends = SendsToRanks()
        self._sharing: dict[str, Any] = {}  # who shares this rank's batch
        self._parameters: list[dict[str, Any]] = []  # what most bytes of gradients belong to
        self._trackers = Trackers() if trial.has_private_view else None
        self._events = ScriptEvents(self._guard)
        self._ends = StepEnds()
        self._marks = 0  # steps that the script marked
        self._has_marks = bool(settings.get("step_at"))
        self._backward = BackwardTime(self._wrappers)
        self._parts = StepParts(self._inputs, self._loaders, self._optimizers, self._backward)
        self._known_optimizers = 0
        self._measuring: ScriptMeasuring | None = None
        self._phases: StepPhases | None = None  # of recorded or profiled steps
        self._undo: list[Callable[[], None]] = []
        self._silent_now = False  # since the window
        self._is_off = False

    def install(self) -> None:
        """Hook into torch."""
        self._losses.install()
        self._optimizers.install()
        self._loaders.install()
        self._wrappers.install()
        self._sends.install()
        self._levers.install()
        if self._trackers is not None:
            self._trackers.install()
        self._events.install()
        self._backward.install()
        steps.listen(self._on_mark)
        if self._trial.settings.get("step_at"):
            self._mark_at(str(self._trial.settings["step_at"]))
        atexit.register(self._at_exit)
        self._note_crashes()
        os.register_at_fork(after_in_child=self._in_child)

    def remove(self) -> None:
        """Leave the script alone from now on."""
        self._is_off = True
        parts = (
            self._optimizers,
            self._inputs,
            self._loaders,
            self._sends,
            self._wrappers,
            self._levers,
            self._backward,
            self._losses,
            self._events,
            self._trackers,
        )
        removals = (*(part.remove for part in parts if part is not None), *self._undo)
        for remove in (*removals, forget_imports):
            with contextlib.suppress(Exception):  # what cannot be removed must not keep the rest
                remove()
        self._undo.clear()

    # Events of the script.

    def _on_optimizer_step(self, optimizer: Optimizer) -> None:
        if self._is_off:
            return
        if self._phases is not None:
            self._phases.end(OPTIMIZER)
        key = self._optimizers.key_of(optimizer)
        if key >= self._known_optimizers:
            self._meet_optimizer(optimizer, key)
        if self._has_marks:
            return
        ends = self._ends
        if ends.add(key):
            self._tick()
        elif ends.is_broken or ends.period is None:
            self._find_period()

    def _meet_optimizer(self, optimizer: Optimizer, key: int) -> None:
        self._known_optimizers = key + 1
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._inputs.watch(parameters)

    def _find_period(self) -> None:
        measuring = self._measuring
        if self._ends.is_broken and measuring is not None:
            if measuring.in_window:
                self.fail(BadInput(_APERIODIC))
            measuring.restart()
        if self._ends.settle():
            self._tick()
        elif self._ends.events >= MOST_EVENTS:
            self.fail(BadInput(_APERIODIC))

    def _on_mark(self) -> None:
        if not self._is_off:
            self._marks += 1
            self._has_marks = True
            self._tick()

    def _tick(self) -> None:
        """A step of the script has ended."""
        with self._guard:
            if self._wrappers.has_hooks:
                self._wrappers.after_step()
            measuring = self._measuring or self._begin()
            measuring.tick()

    def _begin(self) -> ScriptMeasuring:
        self._measuring = ScriptMeasuring(self._job, self._device(), self)
        ranks = self._measuring.ranks
        self._process.update(rank=ranks.rank, world_size=ranks.world_size, steps=self._optimizers.events)
        return self._measuring

    def look(self, step: int) -> None:
        """In the first step FSDP is silenced; after the second the called modules are known."""
        modules = self._modules()
        if step == 1:
            self._wrappers.silence_shards(modules)
            self._sends.count = 0  # what was sent before the second step prepared the training
            return
        self._look_at_ranks(modules)
        self._inputs.remove()
        self._look_at_numerics(modules)
        self._levers.apply(self._inputs.modules)
        self._inputs.settle()
        self._parts.begin()
        for part in (self._levers, self._loaders, self._wrappers):
            part.check()
        if has_ablation(self._trial, PRELOADED) and not self._loaders.batches:
            raise BadInput("the script uses no DataLoader, so its input cannot be preloaded")
        if has_ablation(self._trial, NO_COMM) and kind_of(modules) not in ("ddp", "fsdp2"):
            raise BadInput("the script's communication cannot be removed: it uses neither DDP nor FSDP2")

    def _look_at_ranks(self, modules: list[torch.nn.Module]) -> None:
        """Who shares this rank's batch, and what it sends."""
        sends = self._sends.count
        self._sends.remove()
        if self._sharing:
            return
        self._sharing = {"sends": sends}
        with contextlib.suppress(Exception):  # private to torch; without it these facts are unknown
            self._sharing |= {
                "averaging_ranks": averaging_ranks(modules),
                "cut_ranks": cut_ranks(self._trained()),
                "input_hash": input_hash(self._inputs.received),
            }
            self._parameters = largest_parameters(modules, self._trained())

    def _look_at_numerics(self, modules: list[torch.nn.Module]) -> None:
        with contextlib.suppress(Exception):  # what objects of other libraries do when they are looked at
            facts = already_there(modules, self._optimizers.optimizers, self._trained(), self._device())
            self._already = {"autocast": self._inputs.autocast, **facts}

    def end_warmup_step(self) -> None:
        self._parts.end_step()

    def forget(self) -> None:
        self._parts.skip_steps()

    def begin_window(self) -> Counters:
        """Keep only what has to be counted in the window."""
        assert self._measuring is not None
        self._parts.settle()
        self._settle_optimizers(self._measuring.tick)
        self._wrappers.reset()
        self._events.begin(self._steps_from_now(), self._modules())
        device = self._device()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        counters_from, losses_from = self._counters_from_now(), self._losses_from_now()

        def counters(steps: int) -> dict[str, Any]:
            counted = {**self._samples(steps), **counters_from(steps), **losses_from(steps)}
            return {**counted, "tables": {**counted["tables"], EVENTS: self._events.rows(steps)}}

        return counters

    def begin_recording(self) -> Counters:
        """Optimizer steps stay watched: they are parts of the recorded steps. Samples are not counted, as a
        few steps say less about them than a window."""
        self._parts.settle()
        self._losses.stop()
        self._inputs.remove()
        return self._counters_from_now()

    @contextlib.contextmanager
    def marked(self, range_of: RangeOf) -> Iterator[Callable[[], None]]:
        self._phases = StepPhases(range_of, self._inputs.modules)
        try:
            with self._phases.installed():
                yield self._phases.end_step
        finally:
            self._phases = None

    # What follows on the window in the same process.

    def uses_loader(self) -> bool:
        return self._loaders.batches > 0

    def batches_ahead(self) -> int:
        return self._loaders.ahead

    def why_not_here(self, trial: Trial) -> str | None:
        if has_ablation(trial, NO_COMM):
            if kind_of(self._modules()) not in ("ddp", "fsdp2"):
                return ""
            if self._optimizers.has_scaler:
                return "a GradScaler skips steps depending on exchanged gradients"
            return self._wrappers.why_not_silenced()
        if is_try(trial) and _replays_graphs():
            return "the script replays CUDA graphs"
        if is_recorded(trial) and torch.autograd._profiler_enabled():
            return "the script uses torch's profiler itself"
        if is_recorded(trial) and _replays_graphs():
            return "the script replays CUDA graphs"
        return None

    def begin_explaining(self) -> None:
        self._losses.stop()
        self._inputs.remove()
        self._optimizers.unsettle()

    @contextlib.contextmanager
    def ablated(self, trial: Trial) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if has_ablation(trial, PRELOADED):
                stack.enter_context(self._loaders.preloading())
            if has_ablation(trial, NO_COMM):
                self._wrappers.silence(self._modules())
                self._backward.install()
                self._silent_now = True
            yield

    def switched(self, trial: Trial) -> AbstractContextManager[None]:
        return self._levers.switched(trial.settings)

    def profiled_model(self) -> ProfiledModel:
        buffers = {id(buffer): buffer for module in self._inputs.modules for buffer in module.buffers()}
        size = sum(buffer.numel() * buffer.element_size() for buffer in buffers.values())
        return ProfiledModel(
            parameters=[parameter for parameter in self._trained() if parameter.requires_grad],
            may_wait_for_gpu=True,
            counters={"profile/buffer_bytes": size},
        )

    def explaining_counters(self, steps: int) -> dict[str, Any]:
        if not self._silent_now:
            return {}
        return {**self._wrappers.counters(), "tables": {REMAINING: self._wrappers.remaining(steps)}}

    def _counters_from_now(self) -> Counters:
        skipped = self._optimizers.skipped

        def counters(steps: int) -> dict[str, Any]:
            return {
                **self._parts.times(steps),
                **self._observed(self._optimizers.skipped - skipped),
                **self._wrappers.counters(),
                **self._suppressed(),
                **self._written(),
                "tables": self._tables(steps),
            }

        return counters

    def _losses_from_now(self) -> Counters:
        began, per_step, by_marks = self._position(), len(self._ends.period or (0,)), self._has_marks

        def step_of(position: tuple[int, ...]) -> int:
            events, skipped, marks = position
            return marks - began[2] if by_marks else (events + skipped - began[0] - began[1]) // per_step

        def counters(steps: int) -> dict[str, Any]:
            self._losses.stop()
            try:
                losses = self._losses.by_step(step_of, steps)
            except Exception:  # a CUDA graph of the script's own may have overwritten them
                return {}
            return {
                f"{OBSERVED}seeded": None if self._losses.is_seeded is None else int(self._losses.is_seeded),
                f"{OBSERVED}first_bad_loss": losses.first_bad,
                "samples": {"warmup_loss": losses.warmup, "loss": losses.window} if losses.window else {},
            }

        return counters

    def _steps_from_now(self) -> Callable[[], int]:
        """How many steps have ended since, whenever that is asked."""
        if self._has_marks:
            marks = self._marks
            return lambda: self._marks - marks
        optimizers, per_step = self._optimizers, len(self._ends.period or (0,))
        before = optimizers.events + optimizers.skipped
        return lambda: (optimizers.events + optimizers.skipped - before) // per_step

    def _settle_optimizers(self, tick: Callable[[], None]) -> None:
        optimizers = self._optimizers.optimizers
        is_simple = len(optimizers) == 1 and self._ends.period == (0,)
        if is_simple and not self._has_marks and not self._wrappers.has_hooks:
            self._optimizers.settle((optimizers[0], tick))
        else:
            self._optimizers.settle(None)

    # What is stored.

    def _samples(self, steps: int) -> dict[str, Any]:
        if self._trial.settings.get("samples_per_step") is not None:
            return {f"{OBSERVED}unit": "samples", f"{OBSERVED}samples_from": "--samples-per-step"}
        counted = self._parts.samples(steps)
        if counted is None:
            return {}
        return {
            "measured_samples": counted.count,
            f"{OBSERVED}unit": counted.unit,
            f"{OBSERVED}samples_from": counted.source,
        }

    def _observed(self, skipped: int) -> dict[str, Any]:
        period = self._ends.period
        modules = self._modules()
        trained = self._trained()
        names = dict.fromkeys(type(optimizer).__name__ for optimizer in self._optimizers.optimizers)
        facts = {
            "wrapper": kind_of(modules),
            "loader": int(self._loaders.batches > 0),
            "loader_workers": self._loaders.workers,
            "loader_pinned": int(self._loaders.is_pinned),
            "loader_persistent": int(self._loaders.is_persistent),
            "optimizers": ", ".join(names),
            "events_per_step": None if period is None or self._marks else len(period),
            "micro_batches": self._parts.micro_batches,
            "step_from": self._step_source(),
            "skipped_steps": skipped,
            "kept_hooks": self._wrappers.kept_hooks,
            **self._sharing,
            **self._already,
        }
        convolutions = (torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose2d)
        return {
            **{f"{OBSERVED}{name}": value for name, value in facts.items()},
            "loader/process_s": self._loaders.process_s,
            "parameters": sum(parameter.numel() for parameter in trained),
            "parameter_tensors": len(trained),
            "gradient_bytes": sum(p.numel() * p.element_size() for p in trained),
            "convolutions": sum(
                isinstance(part, convolutions) for module in modules for part in module.modules()
            ),
        }

    def _trained(self) -> list[torch.Tensor]:
        """The parameters that optimizers hold."""
        parameters = (
            parameter
            for optimizer in self._optimizers.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
        return list({id(parameter): parameter for parameter in parameters}.values())

    def _step_source(self) -> str:
        if self._trial.settings.get("step_at"):
            return str(self._trial.settings["step_at"])
        return "scalescope.step()" if self._marks else "optimizer steps"

    def _suppressed(self) -> dict[str, int]:
        calls = {} if self._trackers is None else self._trackers.calls
        return {f"{SUPPRESSED}{name}": count for name, count in calls.items()}

    def _written(self) -> dict[str, int]:
        """What was written to the private view so far, by all ranks that share it; the first one counts."""
        rank = 0 if self._measuring is None else self._measuring.ranks.rank
        if self._job.view is None or rank != 0:
            return {}
        sizes = [os.lstat(file).st_size for _, file in changed_files(Path(self._job.view["folder"]))]
        return {f"{WRITTEN}files": len(sizes), f"{WRITTEN}bytes": sum(sizes)}

    def _tables(self, steps: int) -> dict[str, Any]:
        tables = {LARGEST_PARAMETERS: self._parameters}
        if has_ablation(self._trial, NO_COMM):
            tables[REMAINING] = self._wrappers.remaining(steps)
        return tables

    def _modules(self) -> list[torch.nn.Module]:
        return [*self._wrappers.replicas, *self._inputs.modules]

    def _device(self) -> torch.device:
        """Where the parameters of the first optimizer are."""
        for optimizer in self._optimizers.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    device: torch.device = parameter.device
                    return device
        on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    # Patches of the session itself.

    def _mark_at(self, reference: str) -> None:
        module_name, _, function_name = reference.partition(":")

        def wrap() -> None:
            module = sys.modules.get(module_name) or importlib.import_module(module_name)
            if not hasattr(module, function_name):
                self._refuse(BadInput(f"--step-at {reference}: {module_name} has no {function_name}"))
                return
            original: Callable[..., Any] = getattr(module, function_name)

            def marked(*args: Any, **kwargs: Any) -> Any:
                returned = original(*args, **kwargs)
                self._on_mark()
                return returned

            setattr(module, function_name, marked)

        after_import(module_name, wrap)

    def _note_crashes(self) -> None:
        original = sys.excepthook

        def note(kind: Any, error: BaseException, trace: Any) -> None:
            with contextlib.suppress(Exception):
                self._process.update(error=f"{kind.__name__}: {error}"[:500], steps=self._optimizers.events)
                if self._measuring is not None:
                    self._measuring.fail(error, self._optimizers.events + self._optimizers.skipped)
            original(kind, error, trace)

        sys.excepthook = note
        self._undo.append(lambda: setattr(sys, "excepthook", original))

    # Ends.

    def finished(self) -> None:
        """The record is written: end the script, or leave it alone."""
        measuring = self._measuring
        assert measuring is not None
        self._process.update(steps=self._optimizers.events)
        self.remove()
        if not self._keeps_running:
            measuring.end(0)

    def fail(self, error: Exception) -> None:
        """Give up measuring; nothing that follows would mean anything."""
        if self._measuring is not None:
            with contextlib.suppress(Exception):  # its record may be what cannot be written
                self._measuring.fail(error)
        self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        self._process.update(error=str(error), steps=self._optimizers.events)
        self.remove()
        with contextlib.suppress(Exception):
            if not self._keeps_running and not isinstance(error, BadInput):
                traceback.print_exception(error)
            goes_on = "; the training goes on without being measured" if self._keeps_running else ""
            print(f"scalescope: {error}{goes_on}", file=sys.stderr, flush=True)
        if not self._keeps_running:
            os._exit(1)

    def _at_exit(self) -> None:
        """The script has ended without being stopped."""
        with self._guard:
            self._finish_at_exit()

    def _finish_at_exit(self) -> None:
        if self._is_off:
            return
        measuring = self._measuring
        self._keeps_running = True  # it is leaving already
        if measuring is not None:
            measuring.end_with_script()
        self._process.update(steps=self._optimizers.events)

    def _in_child(self) -> None:
        """A forked process: a helper of a script that trains already, or a rank that has not begun."""
        if self._optimizers.events:
            self._is_off = True


def _replays_graphs() -> bool:
    """Whether there are CUDA graphs: the script's own, or those of compilation with reduce-overhead."""
    if "torch._inductor.cudagraph_trees" in sys.modules:
        trees = sys.modules["torch._inductor.cudagraph_trees"]
        if getattr(getattr(trees, "local", None), "tree_manager_containers", None):
            return True
    return any(type(thing) is torch.cuda.CUDAGraph for thing in gc.get_objects())
