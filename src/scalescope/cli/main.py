"""The entry point: answers at once what names no verb, and leaves the rest to click."""

import os
import sys

from scalescope.cli import front_page
from scalescope.cli.streams import abandon_output, replace_unencodable


def main() -> None:
    """Run `scalescope` with the arguments of this process and leave with an exit code."""
    is_completing = front_page.COMPLETION_VARIABLE in os.environ
    text = None if is_completing else front_page.answer(sys.argv[1:])
    if text is None:
        from scalescope.cli.app import main as run_verb

        run_verb()
        return
    replace_unencodable()
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.exit(abandon_output())
