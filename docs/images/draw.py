"""Draws the README's picture from a run: python docs/images/draw.py RUN 'COMMAND' > docs/images/scale.svg"""

import io
import re
import sys

from rich.console import Console
from rich.terminal_theme import MONOKAI

from scalescope.report.scaling import next_after_scaling, scaling_sections
from scalescope.report.terminal import show
from scalescope.results.run import load_run


def main() -> None:
    folder, command = sys.argv[1:3]
    run = load_run(folder)
    page = Console(record=True, width=180, file=io.StringIO(), highlight=False, force_terminal=True)
    page.print(f"[bold]$[/] {command}")
    show(scaling_sections(run), page)
    page.print(f"\nNext: {next_after_scaling(run)}")
    drawn = page.export_svg(title="scalescope", theme=MONOKAI)
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # fetches nothing from elsewhere
    print(re.sub(r"<!--.*?-->\s*", "", drawn).replace("Fira Code, monospace", "monospace"))


if __name__ == "__main__":
    main()
