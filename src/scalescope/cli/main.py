"""The entry point: answers at once what names no verb, and leaves the rest to click.

What takes long to load is imported by `main`, when an interruption has a handler already.
"""

import os
import signal
import sys

from scalescope.cli.leaving import leave_at_once


def main() -> None:
    """Run `scalescope` with the arguments of this process and leave with an exit code."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGINT, leave_at_once)
    from scalescope.cli import front_page
    from scalescope.cli.streams import code_after_output, install_clean_output

    install_clean_output()
    is_completing = front_page.COMPLETION_VARIABLE in os.environ
    text = None if is_completing else front_page.answer(sys.argv[1:])
    if text is None:
        from scalescope.cli.app import main as run_verb

        run_verb()
    print(text)
    sys.exit(code_after_output(0))
