"""Chapters: which are made of which runs, and the names and values of their figures."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.trace.profile import TraceProfile
from scalescope.diagnose import step_facts
from scalescope.experiment.trial import Trial
from scalescope.report import analyzed_run as material_module
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import Chapter, titled_by_run, with_first_screen
from scalescope.report.chapters import (
    chapters_of,
    datasets,
    environment,
    findings,
    levers,
    scaling,
    step,
    steps,
    timeline,
    trials,
    waterfall,
)
from scalescope.report.render.svg import svg_for_page
from scalescope.report.section import Figure, Section
from scalescope.results.run import Run
from scalescope.results.traces.rank_trace import TracedRank, TracedStep
from tests.builders.known_runs import make_run, make_trials
from tests.builders.steps import halves_of
from tests.simulated.launcher import TWO_CORES, CostModel

EPOCHS = {
    "epoch_time_s": [0.3, 0.2, 0.2],
    "train_accuracy": [0.5, 0.7, 0.8],
    "validation_accuracy": [0.4, 0.6, 0.7],
}


def report_input(*runs: Run, **options: Any) -> ReportInput:
    return ReportInput(tuple(AnalyzedRun(run) for run in runs), "title", **options)


def names(chapter: Chapter | None) -> list[str]:
    return [] if chapter is None else [figure.name for figure in chapter.figures]


def figure(chapter: Chapter | None, name: str) -> Figure:
    assert chapter is not None
    return next(figure for figure in chapter.figures if figure.name == name)


def trained(run: Run) -> Run:
    """The same run with three epochs in every rank's record."""
    results = [
        dataclasses.replace(
            result,
            ranks=[dataclasses.replace(rank, samples={**rank.samples, **EPOCHS}) for rank in result.ranks],
        )
        for result in run.results
    ]
    return dataclasses.replace(run, results=tuple(results))


def test_chapters_come_in_order_and_have_names_of_their_own() -> None:
    chapters = chapters_of(report_input(make_run(make_trials(world_size=[1, 2], explained=True), 2)))
    assert [chapter.order for chapter in chapters] == sorted(chapter.order for chapter in chapters)
    assert chapters[0].name == "verdict" and chapters[-1].name == "trials"
    every = [figure.name for chapter in chapters for figure in chapter.figures]
    assert len(every) == len(set(every))
    assert all(
        figure.alt and figure.title and figure.panels for chapter in chapters for figure in chapter.figures
    )


def test_a_run_of_one_rank_has_no_scaling_section() -> None:
    assert scaling.chapter(report_input(make_run(make_trials(), 1))) is None


def test_every_data_set_has_its_figures() -> None:
    run = trained(make_run(make_trials(world_size=[1, 2], batch_size=[8, 16]), 2))
    assert set(names(datasets.chapter(report_input(run)))) == {
        "mlp_throughput", "mlp_epoch_time_detailed", "mlp_accuracy", "mlp_speedup_efficiency"
    }  # fmt: skip


def test_first_epochs_may_be_left_out_of_the_curves() -> None:
    run = trained(make_run(make_trials(), 1))
    for skipped, places in ((0, (1.0, 2.0, 3.0)), (1, (2.0, 3.0))):
        drawn = figure(datasets.chapter(report_input(run, skip_epochs=skipped)), "mlp_epoch_time_detailed")
        assert drawn.panels[0].series[0].x == places


def test_names_of_data_sets_are_made_fit_for_files() -> None:
    run = make_run([trial.replace(workload="a b/../ü$.py:build") for trial in make_trials()], 1)
    assert names(datasets.chapter(report_input(run)))[0] == "ü__throughput"


def test_no_data_set_overwrites_the_figures_of_another() -> None:
    named = [
        trial.replace(workload=f"{name}.py:build")
        for trial in make_trials()
        for name in ("a b", "a_b", "A_B")
    ]
    figure_names = [
        figure.name for chapter in chapters_of(report_input(make_run(named, 1))) for figure in chapter.figures
    ]
    assert [name for name in figure_names if name.casefold().startswith("a_b")] == [
        "a_b_throughput", "a_b_throughput_2", "A_B_throughput_3"
    ]  # fmt: skip


def test_configurations_with_the_same_name_are_distinguished() -> None:
    run = make_run(make_trials(optimizer=["sgd", "adamw"], batch_size=16), 1)
    drawn = figure(steps.chapter(report_input(run)), "steps")
    assert [series.label for series in drawn.panels[0].series] == [
        "single, 1 rank, batch 16, optimizer sgd",
        "single, 1 rank, batch 16, optimizer adamw",
    ]


def test_titles_name_the_run_where_there_are_several() -> None:
    run = make_run(make_trials(world_size=[1, 2], batch_size=16), 1)
    first, second = (dataclasses.replace(run, path=Path(name)) for name in ("first", "second"))
    alone, both = scaling.chapter(report_input(first)), scaling.chapter(report_input(first, second))
    assert alone is not None and both is not None
    assert [figure.title for figure in both.figures] == [
        f"{name}: {alone.figures[0].title}" for name in ("second", "first")
    ]
    assert [section.title for section in both.sections] == [
        f"{name}: {alone.sections[0].title}" for name in ("second", "first")
    ]


def test_a_section_without_a_title_has_the_name_of_its_run_once() -> None:
    run = make_run(make_trials(), 1)
    runs = [AnalyzedRun(run, label=name) for name in ("a", "a", "b")]
    sections = [Section(lines=("line",))] * 3
    both = report_input(run, dataclasses.replace(run, path=Path("other")))
    assert [part.title for part in titled_by_run(both, zip(runs, sections, strict=True))] == ["a", None, "b"]
    single = titled_by_run(report_input(run), zip(runs[:2], sections, strict=False))
    assert [part.title for part in single] == [None, None]


def test_a_waterfall_of_a_combined_report_names_its_run_even_where_it_is_the_only_one() -> None:
    explained = make_run(make_trials(world_size=[1, 2], batch_size=16, explained=True), 2)
    other = dataclasses.replace(make_run(make_trials(), 1), path=Path("other"))
    chapter = waterfall.chapter(report_input(dataclasses.replace(explained, path=Path("mine")), other))
    assert chapter is not None
    assert [part.title.startswith("mine: ") for part in chapter.figures] == [True]
    assert (chapter.sections[0].title or "").startswith("mine: ")


def test_every_kind_of_launch_has_its_own_name() -> None:
    made = make_trials(world_size=[2], batch_size=16, num_workers=1, explained=True)
    others = make_trials(world_size=[2], batch_size=16, optimizer=["sgd", "adamw"])
    run = make_run([*made, *others], 1)
    chapter = trials.chapter(report_input(run))
    assert chapter is not None and chapter.sections[0].table is not None
    named = {row[1]: row[3] for row in chapter.sections[0].table.rows}
    assert len(set(named.values())) == len(named) == len({trial.trial_id for trial in (*made, *others)})
    assert any(name.endswith("no communication, preloaded input") for name in named.values())
    assert any(name.endswith("batch 16, preloaded input") for name in named.values())


def test_a_line_of_speedups_starts_at_its_baseline() -> None:
    run = make_run(make_trials(world_size=[1, 2, 4], bucket_cap_mb=[1, 25], batch_size=16), 1)
    drawn = figure(datasets.chapter(report_input(run)), "mlp_speedup_efficiency")
    lines = [series for series in drawn.panels[0].series if series.role == "data"]
    assert [line.x for line in lines] == [(1.0, 2.0, 4.0)] * 2
    assert all(line.y[0] == 1.0 for line in lines)
    assert [line.label for line in lines] == ["batch 16, bucket_cap_mb 1.0", "batch 16, bucket_cap_mb 25.0"]


def test_a_setting_may_be_overlaid() -> None:
    run = make_run(make_trials(world_size=[1, 2], batch_size=16), 1)
    drawn = figure(scaling.chapter(report_input(run, by="precision")), "scaling")
    assert drawn.panels[0].series[0].label == "batch 16, precision fp32"


def test_combinations_of_levers_have_their_intervals(tmp_path: Path) -> None:
    tuning = {
        "verdict": "a + b is faster",
        "combinations": [
            {"levers": [], "verdict": None, "speedup": 1.0},
            {"levers": ["a", "b"], "verdict": "faster", "speedup": 1.4, "ci95_speedup": [1.3, 1.5]},
            {"levers": ["c"], "verdict": "faster", "speedup": 1.2, "loss_differs": True},
            {"levers": ["d"], "verdict": None, "speedup": 0.9},
        ],
    }
    (tmp_path / "tuning.json").write_text(json.dumps(tuning))
    run = dataclasses.replace(make_run(make_trials(), 1), path=tmp_path)
    chapter = levers.chapter(report_input(run))
    assert chapter is not None
    (panel,) = figure(chapter, "levers").panels
    assert panel.names == ("a + b", "c (the loss differs)", "d")
    assert [(drawn.label, drawn.x) for drawn in panel.series] == [
        ("faster", (1.4, 1.2)),
        ("no verdict: at most one launch", (0.9,)),
    ]
    assert panel.series[0].interval(0) == (1.3, 1.5)


BROKEN = (
    *("", "[]", "{", '{"combinations": 3}', '{"combinations": [3]}'),
    '{"combinations": [{"levers": null, "speedup": 1.5}]}',
    '{"combinations": [{"levers": ["a"], "speedup": null}], "inapplicable": 3}',
)


def test_a_broken_account_of_tuning_draws_nothing(tmp_path: Path) -> None:
    run = dataclasses.replace(make_run(make_trials(), 1), path=tmp_path)
    for text in BROKEN:
        (tmp_path / "tuning.json").write_text(text)
        assert names(levers.chapter(report_input(run))) == [], text


def test_every_launch_is_listed_and_long_lists_end() -> None:
    run = make_run(make_trials(), 2)
    chapter = trials.chapter(report_input(run))
    assert chapter is not None and chapter.sections[0].table is not None
    assert len(chapter.sections[0].table.rows) == 2
    many = dataclasses.replace(run, results=run.results * 1500)
    cut = trials.chapter(report_input(many))
    assert cut is not None and cut.sections[0].table is not None
    assert len(cut.sections[0].table.rows) == 2000
    assert cut.sections[0].lines[0].startswith("1,000 more launches")


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [(1, "here"), (2, "2: n0, n1"), (6, "6: n0, n1, n2, n3, …")],
)
def test_a_run_on_several_nodes_names_them(nodes: int, shown: str) -> None:
    recorded = {"machine": {"host": "here"}, "nodes": {f"n{number}": {} for number in range(nodes)}}
    run = dataclasses.replace(make_run(make_trials(), 1), environment=recorded)
    chapter = environment.chapter(report_input(run))
    assert chapter is not None and chapter.sections[0].table is not None
    assert chapter.sections[0].table.rows[0][2] == shown


def test_what_a_run_without_scaling_finds_is_in_the_report() -> None:
    nodes = {"n1": dataclasses.replace(TWO_CORES, cores=64), "n2": dataclasses.replace(TWO_CORES, cores=32)}
    recorded = {"nodes": {host: dataclasses.asdict(node) for host, node in nodes.items()}}
    run = dataclasses.replace(make_run(make_trials(), 1), environment=recorded)
    chapter = findings.chapter(report_input(run))
    assert chapter is not None
    assert chapter.sections[0].findings[0].text.startswith("nodes differ: cores: 64 on n1; 32 on n2.")
    assert findings.chapter(report_input(dataclasses.replace(run, environment={}))) is None


def test_a_recorded_step_is_drawn_with_few_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [(number * 1e-4, number * 1e-4 + 5e-5) for number in range(1000)]
    step = TracedStep(
        time_s=0.1, compute_s=0.05, communication_s=0.02, overlap_s=0.01, copy_s=0.0, idle_s={},
        collectives=(), backward_compute=None, communication=None,
        spans={"compute": spans, "communication": [(0.01, 0.03)]},
    )  # fmt: skip
    (trial,) = make_trials(world_size=2)
    monkeypatch.setattr(material_module, "profiles", lambda run: (_profile(trial, step),))
    monkeypatch.setattr(timeline, "profile_sections", lambda run: ())
    (panel,) = figure(timeline.chapter(report_input(make_run([trial], 1))), "timeline").panels
    assert panel.names == ("rank 0 compute", "rank 0 communication", "rank 1 compute", "rank 1 communication")
    assert max(len(drawn.x) for drawn in panel.series) <= 150
    assert [(drawn.row, drawn.label) for drawn in panel.series] == [
        (0, "compute"), (1, "communication"), (2, "compute"), (3, "communication")
    ]  # fmt: skip


def _profile(trial: Trial, step: TracedStep) -> TraceProfile:
    ranks = {rank: TracedRank(on_gpu=False, steps=(step,), kernels=()) for rank in range(2)}
    return TraceProfile(
        trial=trial, files={}, ranks=ranks, unread={}, untraced_step_s=None, traced_step_s=0.1,
        ddp_overlap=None, bucket_bytes=None,
    )  # fmt: skip


def test_disturbed_launches_are_marked_and_repeated_ones_are_listed() -> None:
    busy = {"load": {"cores": 2, "other_cores": 1.5, "rank_waits": [0.5]}}
    run = make_run(make_trials(), 2)
    first, second = run.results
    disturbed = dataclasses.replace(first, telemetry=busy)
    run = dataclasses.replace(
        run,
        results=(first, dataclasses.replace(second, telemetry=busy)),
        replaced=(disturbed,),
    )
    chapter = trials.chapter(report_input(run))
    assert chapter is not None and chapter.sections[0].table is not None
    listed = [(row[2], row[4]) for row in chapter.sections[0].table.rows]
    assert listed == [("0", "ok"), ("1", "ok, disturbed"), ("0", "ok, disturbed and repeated")]


def test_the_parts_of_a_step_are_a_bar_for_each_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_facts, "step_waterfall", halves_of)
    run = make_run(make_trials(batch_size=[8, 16]), 1)
    made = step.chapter(report_input(run))
    assert made is not None and len([section for section in made.sections if section.table]) == 2
    panel = figure(made, "step").panels[0]
    assert panel.names == ("single, 1 rank, batch 8", "single, 1 rank, batch 16")
    halves = {part.label: part.y for part in panel.series}
    assert halves["forward"] == halves["idle: after a synchronization"]
    assert halves["ideal"] == pytest.approx([2 * half / 10 for half in halves["forward"]])
    pointed_at = f"{panel.names[0]}: idle: after a synchronization"
    assert f"<title>{pointed_at} " in svg_for_page(figure(made, "step"))


def test_without_known_parts_there_is_no_chapter_of_the_step() -> None:
    assert step.chapter(report_input(make_run(make_trials(), 1))) is None


def test_the_waterfall_begins_with_one_ranks_step_where_its_parts_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run(make_trials(world_size=[1, 2], batch_size=16, explained=True), 3)
    speeds = figure(waterfall.chapter(report_input(run)), "waterfall").panels[0]
    assert speeds.names == ("2 ranks, batch 16",)
    monkeypatch.setattr(step_facts, "step_waterfall", halves_of)
    whole = figure(waterfall.chapter(report_input(run)), "waterfall").panels[0]
    assert whole.names == ("1 rank", "2 ranks")
    lengths_ms = [
        sum(
            y
            for part in whole.series
            if part.role != "ideal"
            for x, y in zip(part.x, part.y, strict=True)
            if x == row
        )
        for row in (0.0, 1.0)
    ]
    rows = AnalyzedRun(run).rows
    (known,) = [row.waterfall for row in rows if row.waterfall is not None]
    assert lengths_ms[1] == pytest.approx(known.step_s * 1e3)
    assert lengths_ms[0] == pytest.approx(known.ideal_s * 1e3, rel=0.01)


@pytest.mark.parametrize(("contention_s", "is_shorter"), [(-0.001, True), (0.001, False)])
def test_terms_that_shorten_the_step_are_explained_below_the_figure(
    monkeypatch: pytest.MonkeyPatch, contention_s: float, is_shorter: bool
) -> None:
    monkeypatch.setattr(step_facts, "step_waterfall", halves_of)
    model = CostModel(fixed_s=0.02, contention_s=contention_s, exposed_comm_s={2: 0.002})
    run = make_run(make_trials(world_size=[1, 2], batch_size=16, explained=True), 2, model)
    notes = figure(waterfall.chapter(report_input(run)), "waterfall").notes
    assert any(note.startswith("Left of zero") for note in notes) == is_shorter


def test_the_first_screen_has_the_figure_that_answers_the_verb_and_what_to_do(tmp_path: Path) -> None:
    tuning = {
        "verdict": "a is faster",
        "combinations": [{"levers": ["a"], "verdict": "faster", "speedup": 1.4}],
        "script": "model = torch.compile(model)",
    }
    (tmp_path / "tuning.json").write_text(json.dumps(tuning))
    run = make_run(make_trials(world_size=[1, 2], batch_size=16, explained=True), 2)
    made = chapters_of(report_input(dataclasses.replace(run, path=tmp_path)))
    for verb, name in (("tune", "levers"), ("scale", "waterfall")):
        first, *others = with_first_screen(made, verb)
        assert [drawn.name for drawn in first.figures] == [name]
        assert name not in {drawn.name for chapter in others for drawn in chapter.figures}
        assert [part.code for part in first.sections] == ["", "model = torch.compile(model)"]
        assert first.sections[0].lines == ("a is faster",)
