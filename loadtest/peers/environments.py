"""Virtual environments of the peers, made on first use, so that nothing of theirs touches ours."""

import subprocess
import sys
from pathlib import Path

from loadtest.bench.http import Failed

STAMP = "installed.txt"
"""What an environment was made with; made again once that changes."""


def installed(folder: Path, name: str, requirements: tuple[str, ...]) -> Path:
    """The folder of an environment's programs.

    Args:
        folder: of all environments.
        name: of this one.
        requirements: as pip takes them.

    Raises:
        Failed: if pip fails; the message has the end of what it wrote.
    """
    place = folder / name
    programs, stamp = place / "bin", place / STAMP
    wanted = "\n".join(requirements)
    if stamp.exists() and stamp.read_text() == wanted:
        return programs
    sys.stderr.write(f"Installing {', '.join(requirements)} into {place} …\n")
    for command in (  # isolated: what PYTHONPATH leads to is not there when the peer runs
        (sys.executable, "-m", "venv", "--clear", str(place)),
        (
            str(programs / "python"),
            "-I",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *requirements,
        ),
    ):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise Failed(f"{' '.join(command[:5])} … failed:\n{done.stdout[-2000:]}")
    stamp.write_text(wanted)
    return programs
