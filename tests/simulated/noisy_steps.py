"""Step times of a simulated machine: work in absolute time, beside load that comes and goes.

The machine knows nothing of periods or ranks of steps: what is long is what takes long on its clock.
"""

import random
from collections.abc import Sequence

TICK_S = 0.004
KINDS = ("calm", "hiccups", "bursts", "ticks", "hiccups, bursts, ticks")


def noisy_steps(rng: random.Random, kind: str, work_s: Sequence[float]) -> tuple[float, ...]:
    """How long steps take that have so much work each."""
    spread = rng.choice((0.01, 0.03, 0.08, 0.2))
    slowed = rng.uniform(1.3, 3.0)
    now_s, level = 0.0, 0.0
    burst = (rng.expovariate(0.5), 0.0)
    times_s = []
    for work in work_s:
        level = 0.8 * level + rng.gauss(0.0, 0.6 * spread)
        took_s = work * rng.lognormvariate(level, 0.8 * spread)
        if "hiccups" in kind and rng.random() < 0.03:
            took_s += 0.3 * work_s[0] * rng.paretovariate(1.3)
        if "bursts" in kind:
            if now_s > burst[1] + burst[0]:
                burst = (rng.expovariate(0.5), now_s + rng.uniform(0.05, 1.5))
            took_s *= slowed if now_s < burst[1] else 1.0
        ends_s = now_s + took_s
        if "ticks" in kind:  # the scheduler's clock ends every wait
            ends_s = (ends_s // TICK_S + 1.0) * TICK_S
        times_s.append(ends_s - now_s)
        now_s = ends_s
    return tuple(times_s)
