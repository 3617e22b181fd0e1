"""The comparison of ways between processes."""

import subprocess
import sys
from pathlib import Path

from loadtest.bench.transport import SIZES, WAYS, table

ROOT = Path(__file__).parents[3]


def test_a_row_says_how_many_times_as_fast_as_the_socket():
    assert table({"4 KiB": [3.0, 2.0, 1.0]}).splitlines()[2] == "| 4 KiB | 3.000 ms | 2.000 ms (1.5) | 1.000 ms (3.0) |"


def test_every_size_passes_every_way():
    """Once at least, however short the time; an array that arrived otherwise than it was sent ends the run."""
    command = [sys.executable, "-m", "loadtest.bench.transport", "--seconds", "0.01"]

    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    assert result.returncode == 0, result.stderr
    assert all(f"| {size} |" in result.stdout for size in SIZES)
    assert result.stdout.splitlines()[0] == f"| array | {' | '.join(WAYS)} |"
