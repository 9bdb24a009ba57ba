"""The expert's loop: the settings that are worth a try on a GPU, one after the other in one process.

    python benchmarks/tuning/hand_loops.py JOB [--device cuda] [--limit 75]
    python benchmarks/tuning/hand_loops.py JOB --serve

It trains a job of jobs.py by PyTorch alone, from a real DataLoader, endless over epochs. Prints a line of
JSON for every set of settings, then the best of them. With --serve it reads settings, one JSON object a line,
and answers each with the milliseconds per step of one block of steps.
"""

import argparse
import contextlib
import dataclasses
import gc
import importlib
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parent))

_WINDOW_S = 1.0
_BLOCK_S = 0.7
_LEAST_STEPS = 10
_WARMUP_STEPS = 5
_LONGEST_WARMUP_S = 3.0
_IMAGE_DIMENSIONS = 4
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_MORE_THAN_ENOUGH = 1.3  # loader processes, over those that just keep up
_AS_GOOD = 1.02
_WORTH_A_PROCESS = 0.05  # of a step, spent on preparing its batch


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an expert sets, by scalescope's names; the defaults are those of a plain script."""

    precision: str = "fp32"
    fused_optimizer: bool = False
    memory_format: str = "contiguous"
    compile: str = "none"
    cudnn_benchmark: bool = False
    num_workers: int = 0
    pin_memory: bool = False
    non_blocking: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None

    def with_loader(self, processes: int, device: torch.device) -> "Settings":
        """The same with so many loader processes, and what belongs to them."""
        if not processes:
            return self
        has_gpu = device.type == "cuda"
        return dataclasses.replace(
            self,
            num_workers=processes,
            pin_memory=has_gpu,
            non_blocking=has_gpu,
            persistent_workers=True,
        )

    @property
    def of_model(self) -> tuple[str, str, str]:
        """What needs a model of its own, and compiles it anew."""
        return self.precision, self.memory_format, self.compile

    @property
    def of_loader(self) -> tuple[int, bool, bool, int | None]:
        return self.num_workers, self.pin_memory, self.persistent_workers, self.prefetch_factor


_NAMES = {field.name: field for field in dataclasses.fields(Settings)}


def settings_of(levers: Sequence[str]) -> tuple[Settings, list[str]]:
    """The settings that levers such as `precision bf16` stand for, and the levers that are none of them."""
    values: dict[str, Any] = {}
    unknown = []
    for lever in levers:
        name, _, text = lever.partition(" ")
        if name not in _NAMES:
            unknown.append(lever)
        elif isinstance(_NAMES[name].default, bool):
            values[name] = text == "True"
        elif isinstance(_NAMES[name].default, str):
            values[name] = text
        else:
            values[name] = None if text == "none" else int(text)
    return Settings(**values), unknown


class Training:
    """A job with a model as some settings need it: optimizers and loaders can be exchanged."""

    def __init__(self, name: str, settings: Settings, device: torch.device) -> None:
        jobs = importlib.import_module("jobs")
        torch.manual_seed(0)
        self._set_flags(settings)
        self._device, self._batch_size = device, jobs.BATCH[name]
        self._parts = _parts_of(getattr(jobs, name)())
        models = self._parts.models
        for model in models.values():
            model.to(device)
            if settings.memory_format == "channels_last":
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            if settings.precision in _DTYPES and self._parts.step is not None:
                # Around the whole step, autocast would reach the backward pass.
                autocast = torch.autocast(device.type, dtype=_DTYPES[settings.precision])
                model.forward = autocast(model.forward)
            if settings.compile != "none":
                mode = None if settings.compile == "default" else settings.compile
                model.compile(mode=mode)  # type: ignore[no-untyped-call]
        self._scaler = torch.amp.GradScaler(device.type) if settings.precision == "fp16" else None
        self._optimizers: dict[bool, dict[str, torch.optim.Optimizer]] = {False: self._parts.optimizers}
        self._streams: dict[Any, Iterator[Any]] = {}

    def milliseconds(self, settings: Settings, window_s: float) -> float:
        """Per step: the mean over a window after a warm-up, which also uses up what loaders had prepared."""
        self._set_flags(settings)
        stream = self._stream(settings)
        step = self._step_of(settings)
        self._run(step, stream, _WARMUP_STEPS)  # compiles
        began = time.perf_counter()
        for _ in range(2 * settings.num_workers * (settings.prefetch_factor or 2) // _WARMUP_STEPS):
            if time.perf_counter() - began > _LONGEST_WARMUP_S:
                break
            self._run(step, stream, _WARMUP_STEPS)
        once_s = self._run(step, stream, _WARMUP_STEPS) / _WARMUP_STEPS
        steps = max(_LEAST_STEPS, math.ceil(window_s / once_s))
        return self._run(step, stream, steps) / steps * 1e3

    def milliseconds_without_input(self, settings: Settings) -> float:
        """Per step, on one batch that is on the device."""
        self._set_flags(settings)
        batch = _moved(next(self._stream(settings)), self._device, settings)
        step = self._step_of(settings)
        ready = itertools.repeat(batch)
        self._run(step, ready, _WARMUP_STEPS)
        return self._run(step, ready, _LEAST_STEPS) / _LEAST_STEPS * 1e3

    def preparing_ms(self) -> float:
        """How long one loader process takes for a batch."""
        stream = self._batches(Settings(num_workers=1))
        for _ in range(4):  # prepared while its process and the first batches were waited for
            next(stream)
        began, batches = time.perf_counter(), 0
        while batches < 4 or (time.perf_counter() - began < 0.5 and batches < 200):
            next(stream)
            batches += 1
        took_s = time.perf_counter() - began
        stream.close()  # type: ignore[attr-defined]
        return took_s / batches * 1e3

    def close(self) -> None:
        """End the loaders' processes."""
        for stream in self._streams.values():
            stream.close()  # type: ignore[attr-defined]
        self._streams.clear()

    def _set_flags(self, settings: Settings) -> None:
        if settings.precision == "tf32":
            torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = settings.cudnn_benchmark

    def _run(self, step: Callable[[Any], None], stream: Iterator[Any], steps: int) -> float:
        """Seconds for so many steps."""
        _finish(self._device)
        began = time.perf_counter()
        for _ in range(steps):
            step(next(stream))
        _finish(self._device)
        return time.perf_counter() - began

    def _step_of(self, settings: Settings) -> Callable[[Any], None]:
        optimizers = self._optimizers_of(settings.fused_optimizer)
        parts, device = self._parts, self._device

        def step(batch: Any) -> None:
            batch = _moved(batch, device, settings)
            if settings.compile == "reduce-overhead":
                torch.compiler.cudagraph_mark_step_begin()
            if parts.step is not None:
                parts.step(parts.models, batch, optimizers)
                return
            with _autocast(device, settings.precision):
                loss = _loss(parts.models[""], parts.loss, batch)
            (optimizer,) = optimizers.values()
            if self._scaler is None:
                loss.backward()
                optimizer.step()
            else:
                self._scaler.scale(loss).backward()
                self._scaler.step(optimizer)
                self._scaler.update()
            optimizer.zero_grad()

        return step

    def _optimizers_of(self, is_fused: bool) -> dict[str, torch.optim.Optimizer]:
        if is_fused not in self._optimizers:
            self._optimizers[is_fused] = {
                name: _fused(optimizer) for name, optimizer in self._parts.optimizers.items()
            }
        return self._optimizers[is_fused]

    def _stream(self, settings: Settings) -> Iterator[Any]:
        if settings.of_loader not in self._streams:
            self._streams[settings.of_loader] = self._batches(settings)
        return self._streams[settings.of_loader]

    def _batches(self, settings: Settings) -> Iterator[Any]:
        loader = DataLoader(
            self._parts.data,
            batch_size=self._batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory,
            persistent_workers=settings.persistent_workers,
            prefetch_factor=settings.prefetch_factor,
        )
        while True:
            yield from loader


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What a job's function returned, with models and optimizers by name."""

    models: dict[str, nn.Module]
    data: Any
    optimizers: dict[str, torch.optim.Optimizer]
    loss: Any = None
    step: Any = None


def _parts_of(returned: Any) -> _Parts:
    if isinstance(returned, tuple):
        model, data, loss, optimizer = returned
        return _Parts(models={"": model}, data=data, optimizers={"": optimizer}, loss=loss)
    return _Parts(
        models=returned.model, data=returned.data, optimizers=returned.optimizer, step=returned.step
    )


def _loss(model: nn.Module, loss: Any, batch: Any) -> Tensor:
    if isinstance(batch, Mapping):
        outputs, targets = model(**batch), batch
    else:
        *inputs, targets = batch
        outputs = model(*inputs)
    computed: Tensor = loss(outputs, targets)
    return computed


def _moved(batch: Any, device: torch.device, settings: Settings) -> Any:
    """A batch on the device, its images in the order of the model."""
    if isinstance(batch, Tensor):
        moved = batch.to(device, non_blocking=settings.non_blocking)
        if settings.memory_format == "channels_last" and moved.dim() == _IMAGE_DIMENSIONS:
            moved = moved.contiguous(memory_format=torch.channels_last)
        return moved
    if isinstance(batch, Mapping):
        return {name: _moved(part, device, settings) for name, part in batch.items()}
    return [_moved(part, device, settings) for part in batch]


def _fused(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    options = {"lr", "betas", "eps", "weight_decay", "params"}
    groups = [
        {name: value for name, value in group.items() if name in options} for group in optimizer.param_groups
    ]
    return type(optimizer)(groups, fused=True)  # type: ignore[call-arg]


@contextlib.contextmanager
def _autocast(device: torch.device, precision: str) -> Iterator[None]:
    if precision not in _DTYPES:
        yield
        return
    with torch.autocast(device.type, dtype=_DTYPES[precision]):
        yield


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class Loop:
    """The expert's loop over settings, each line of which is printed as it is known."""

    def __init__(self, name: str, device: torch.device, limit_s: float) -> None:
        self._name, self._device = name, device
        self._began, self._limit_s = time.monotonic(), limit_s
        self._times: dict[str, float | None] = {}
        self._best: tuple[float, str, Settings] | None = None
        self._worked: list[tuple[float, str, Settings]] = []
        self._kept: tuple[Settings, Training] | None = None

    def run(self) -> None:
        images = self._name in importlib.import_module("jobs").HAS_IMAGES
        plain = Settings()
        half = Settings(precision="bf16")
        fused = dataclasses.replace(half, fused_optimizer=True)
        self._time("plain", plain)
        needs_ms = self._needs(fused)
        processes = 0 if needs_ms is None else _processes(*needs_ms)

        def loaded(settings: Settings) -> Settings:
            return settings.with_loader(processes, self._device)

        if processes:
            self._time("plain", loaded(plain))
        self._time("tf32 + fused", loaded(dataclasses.replace(fused, precision="tf32")))
        self._time("bf16", loaded(half))
        self._time("bf16 + fused", loaded(fused))
        if images:
            last = dataclasses.replace(fused, memory_format="channels_last")
            self._time("bf16 + fused + channels_last", loaded(last))
        name, base = self._best_uncompiled()
        compiled = dataclasses.replace(base, compile="default")
        self._time(f"{name} + compile", loaded(compiled))
        if needs_ms is not None:
            processes = self._again(f"{name} + compile", compiled, needs_ms[0], processes)
        if time.monotonic() - self._began < 0.6 * self._limit_s:  # another mode compiles anew
            replayed = dataclasses.replace(base, compile="reduce-overhead")
            self._time(f"{name} + reduce-overhead", loaded(replayed))
        self._drop()
        took_s = time.monotonic() - self._began
        print(json.dumps({"job": self._name, "took_s": took_s, **self._summary()}), flush=True)

    def _best_uncompiled(self) -> tuple[str, Settings]:
        """What is compiled: the last of those that are as good as the fastest, without its loader.

        Where all of them wait for their input, that is the one which has all the rest.
        """
        if self._best is None:
            return "plain", Settings()
        enough_ms = _AS_GOOD * self._best[0]
        _, name, settings = next(timed for timed in reversed(self._worked) if timed[0] <= enough_ms)
        without = {key: _NAMES[key].default for key in ("num_workers", "pin_memory", "non_blocking")}
        settings = dataclasses.replace(settings, **without, persistent_workers=False)
        return name.partition(" + loader")[0], settings

    def _again(self, name: str, compiled: Settings, prepare_ms: float, processes: int) -> int:
        """Other numbers of loader processes for the compiled step, which may be faster than its input."""
        if self._kept is None or self._kept[0].of_model != compiled.of_model:
            return processes
        with contextlib.suppress(Exception):
            training = self._kept[1]
            wanted = _processes(prepare_ms, training.milliseconds_without_input(compiled))
            more = min(_cores(), 2 * max(wanted, processes))
            for count in dict.fromkeys((wanted, more)):
                if count and count != processes:
                    self._time(name, compiled.with_loader(count, self._device))
            at_best = self._best[2].num_workers if self._best else 0
            return at_best or processes
        return processes

    def _needs(self, settings: Settings) -> tuple[float, float] | None:
        """Milliseconds that a process needs to prepare a batch, and that the step takes without its input."""
        try:
            training = self._training(settings)
            needs_ms = training.preparing_ms(), training.milliseconds_without_input(settings)
        except Exception as error:
            print(json.dumps({"input": None, "failed": _in_a_line(error)}), flush=True)
            self._drop()
            return None
        line = {"prepare_ms": needs_ms[0], "step_without_input_ms": needs_ms[1], "cores": _cores()}
        print(json.dumps({"input": line}), flush=True)
        return needs_ms

    def _time(self, name: str, settings: Settings) -> None:
        if settings.num_workers:
            name = f"{name} + loader {settings.num_workers}"
        began = time.monotonic()
        line: dict[str, Any] = {"setting": name, "settings": dataclasses.asdict(settings)}
        try:
            ms = self._training(settings).milliseconds(settings, _WINDOW_S)
        except Exception as error:
            self._drop()
            self._times[name] = None
            line["failed"] = _in_a_line(error)
        else:
            self._times[name] = line["ms"] = ms
            self._worked.append((ms, name, settings))
            self._best = min(self._worked, key=lambda timed: timed[0])
        print(json.dumps({**line, "took_s": round(time.monotonic() - began, 1)}), flush=True)

    def _training(self, settings: Settings) -> Training:
        """The one that is there, if its model fits; another takes its place."""
        if self._kept is None or self._kept[0].of_model != settings.of_model:
            self._drop()
            self._kept = settings, Training(self._name, settings, self._device)
        return self._kept[1]

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
        self._kept = None
        _forget(self._device)

    def _summary(self) -> dict[str, Any]:
        if self._best is None:
            return {"ms": self._times, "best": None}
        ms, name, settings = self._best
        return {
            "ms": self._times,
            "best": name,
            "best_ms": ms,
            "best_settings": dataclasses.asdict(settings),
        }


def _processes(prepare_ms: float, step_ms: float) -> int:
    """Loader processes that keep up with a step."""
    if prepare_ms < _WORTH_A_PROCESS * step_ms:
        return 0
    return min(_cores(), math.ceil(_MORE_THAN_ENOUGH * prepare_ms / step_ms))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_a_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:300]


def _forget(device: torch.device) -> None:
    """What a setting has left behind."""
    torch.set_float32_matmul_precision("highest")
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def serve(name: str, device: torch.device) -> None:
    """A block of steps for every line of settings; the model is made for the first and stays."""
    training: Training | None = None
    for line in sys.stdin:
        settings = Settings(**json.loads(line))
        try:
            training = training or Training(name, settings, device)
            answer: dict[str, Any] = {"ms": training.milliseconds(settings, _BLOCK_S)}
        except Exception as error:
            answer = {"failed": _in_a_line(error)}
        print(json.dumps(answer), flush=True)
    if training is not None:
        training.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="The expert's loop, by hand.")
    parser.add_argument("job", choices=importlib.import_module("jobs").BATCH)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=75.0, help="seconds that all of it should take")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.serve:
        serve(options.job, device)
    else:
        Loop(options.job, device, options.limit).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
