"""A zygote without torch whose ranks do nothing but end: it starts in a tenth of a second.

Run as `python -m tests.builders.acted_zygote`. A rank exits with the code in its variable
EXIT_CODE, or waits for ever where there is none.
"""

import os
import time
from typing import Any

from scalescope.worker.process import zygote


def _act_as_rank(request: dict[str, Any], answers: int) -> int:
    os.close(answers)
    code = request["env"].get("EXIT_CODE")
    while code is None:
        time.sleep(60)
    return int(code)


if __name__ == "__main__":
    zygote.preload = lambda: None
    zygote._become_rank = _act_as_rank
    zygote.main()
