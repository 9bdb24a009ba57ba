"""What simulates ranks knows nothing of what analyzes them."""

import subprocess
import sys

_IMPORTED = """
import sys
from scalescope.launch import fake
from scalescope.launch.simulated import arrivals, comm, train
from scalescope.launch.simulated.cluster import truth
print([name for name in sys.modules if name.startswith(("scalescope.analysis", "scalescope.diagnose"))])
"""


def test_the_simulation_shares_no_code_with_the_analysis() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
