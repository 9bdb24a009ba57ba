"""What to try: commands of ours around the configuration at hand, never what it uses already."""

import shlex

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Advice
from scalescope.diagnose.network import is_slow_network
from scalescope.results.run_folder import EXPERIMENT


def command(facts: Facts, lever: str) -> str:
    """The command that tries a lever on this configuration: the run's own request, narrowed to it."""
    batch = "--global-batch-size" if facts.trial.mode == "strong" else "--batch-size"
    request = shlex.quote(str(facts.path / EXPERIMENT))
    return f"scalescope tune {request} --world-size {facts.ranks} {batch} {facts.row.batch} --levers {lever}"


def fewer_bytes(facts: Facts) -> tuple[Advice, ...]:
    """Ways to send less: on a slow network the cheapest first; on a usual one, 16 bits may well cost more."""
    settings = facts.trial.settings
    found = []
    if settings.get("accumulation_steps", 1) == 1:
        text = "exchange less often (another job)"
        found.append(Advice(text=text, command=command(facts, "accumulation_steps")))
    batch = "global_batch_size" if facts.trial.mode == "strong" else "batch_size"
    found.insert(0, Advice(text="compute more for every byte (another job)", command=command(facts, batch)))
    if settings.get("comm_hook") == "none":
        half = Advice(text="send gradients in 16 bits", command=command(facts, "comm_hook"))
        found.insert(0 if is_slow_network(facts) else len(found), half)
    return tuple(found)
