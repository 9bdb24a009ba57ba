"""Prediction: efficiency on more ranks with its band, and one predicted step with its exchanges."""

from scalescope.report.analyzed_run import ReportInput
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.prediction.figures import efficiency_figure, timeline_figure
from scalescope.report.prediction.sections import prediction_sections

_MOST = 3  # jobs, of the newest runs first


def chapter(report_input: ReportInput) -> Chapter | None:
    answers = [
        (analyzed, answer)
        for analyzed in reversed(report_input.analyzed_runs)
        for answer in analyzed.predicted.answers
    ][:_MOST]
    if not answers:
        return None
    figures = [
        (analyzed, figure)
        for number, (analyzed, answer) in enumerate(answers)
        if answer.contradiction is None
        for figure in (
            efficiency_figure(answer, number, analyzed.command),
            timeline_figure(answer, number, analyzed.command),
        )
    ]
    return Chapter(
        name="prediction",
        title="Predicted on more ranks",
        order=35,
        sections=titled_by_run(
            report_input,
            ((analyzed, section) for analyzed, answer in answers for section in prediction_sections(answer)),
        ),
        figures=titled_by_run(report_input, figures),
    )
