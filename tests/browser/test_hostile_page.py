"""The page of a stranger's run folder in a browser: nothing that its records hold is run as a script."""

import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.results.run import load_run
from scalescope.studies.report import ReportOptions, report
from tests.browser.opened import Opened
from tests.builders.runs import make_runs

pytestmark = pytest.mark.browser
SCRIPTS = (
    "</script><script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 2'>",
    '" onmouseover="window.ran = 3" autofocus onfocus="window.ran = 4',
    "<svg onload='window.ran = 5'><a href='javascript:window.ran = 6'>x</a></svg>",
    "javascript:window.ran=7",
    "-->]]><script>window.ran = 8</script>",
    '<iframe srcdoc="<script>parent.ran = 9</script>"></iframe>',
)
_KEPT = ("status", "schema_version", "started_at", "benchmark", "why", "verb", "stopped_by", "environment_id")


def hostile(value: Any, name: str, count: list[int]) -> Any:
    """The same JSON value with a script in every string that may hold any text."""
    if isinstance(value, str) and name not in _KEPT:
        count[0] += 1
        return value + SCRIPTS[count[0] % len(SCRIPTS)]
    if isinstance(value, dict):
        return {key: hostile(item, key, count) for key, item in value.items()}
    return [hostile(item, name, count) for item in value] if isinstance(value, list) else value


def make_hostile(run: Path) -> int:
    """Put scripts into every record of a run; how many."""
    count = [0]
    lines = []
    for line in (run / "trials.jsonl").read_text().splitlines():
        record = json.loads(line)
        for part in ("ranks", "notes", "reason", "log", "telemetry"):
            record[part] = hostile(record[part], part, count)
        record["settings"]["env"] = {"NAME": SCRIPTS[0], SCRIPTS[1]: SCRIPTS[2]}
        if "workload" in record["settings"] and run.name == "memory":
            record["settings"]["workload"] = f"{SCRIPTS[0]}.py:build"
        record["trial_id"] = Trial(settings=record["settings"]).trial_id
        lines.append(json.dumps(record))
    (run / "trials.jsonl").write_text("\n".join(lines) + "\n")
    for name in ("environment.json", "run.json", "results.json", "tuning.json", "curve.json"):
        if (run / name).exists():
            record = json.loads((run / name).read_text())
            (run / name).write_text(json.dumps(hostile(record, name, count)))
    return count[0]


def test_no_script_of_a_run_folder_runs(browser: Any, tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "runs", ("scale", "comm", "memory", "tune"))
    planted = sum(make_hostile(path) for path in sorted(runs.iterdir()) if path.is_dir())
    assert planted > 200
    kept = [len(load_run(path).results) for path in sorted(runs.iterdir()) if (path / "run.json").exists()]
    assert sum(kept) > 20  # most of what is hostile is shown, not left out
    written = report([runs], tmp_path / "out", ReportOptions(formats=("html",), title=SCRIPTS[0]))
    page = written.files[0]
    assert "window.ran" in page.read_text(encoding="utf-8")  # shown as text
    opened = Opened(browser, page.as_uri())
    try:
        for element in opened.page.query_selector_all("[title], summary, th, td")[:200]:
            element.dispatch_event("mouseover")
            element.dispatch_event("focus")
        opened.page.wait_for_timeout(200)
        assert opened.page.evaluate("typeof window.ran") == "undefined"
        assert opened.page.query_selector_all("iframe, [onerror], [onload], [onmouseover], [onfocus]") == []
        links = [link.get_attribute("href") or "" for link in opened.page.query_selector_all("a[href]")]
        assert not any(link.strip().lower().startswith("javascript:") for link in links)
        assert opened.requests == [page.as_uri()]
    finally:
        opened.context.close()
