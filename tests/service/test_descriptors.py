"""Room for connections, made before they come."""

import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from serving import start_server

from service.descriptors import MOST_AT_ONCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much room there is")


def room(pid: int | str) -> int:
    """Descriptors that the kernel has room for in a process, without waiting."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["FDSize"])


def allowed() -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_AT_ONCE if most == resource.RLIM_INFINITY else min(most, MOST_AT_ONCE)


def in_a_process(script: str) -> list[int]:
    """The numbers that a script prints in a process of its own, which it changes for good."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, timeout=60
    )
    return [int(number) for number in done.stdout.split()]


def test_room_is_made_for_as_many_as_are_allowed_and_nothing_stays_open() -> None:
    before, soft, after, opened = in_a_process(
        """
        import os, resource
        from pathlib import Path
        from service.descriptors import make_room
        size = lambda: next(l.split()[1] for l in Path("/proc/self/status").read_text().splitlines() if "FDSize" in l)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
        held = os.listdir("/proc/self/fd")
        print(size())
        make_room()
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], size(), len(os.listdir("/proc/self/fd")) - len(held))
        """
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert before < allowed() <= after
    assert soft == most
    assert opened == 0


def test_a_small_limit_is_no_error() -> None:
    (size,) = in_a_process(
        """
        import resource
        from pathlib import Path
        from service.descriptors import make_room
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        make_room()
        print(next(l.split()[1] for l in Path("/proc/self/status").read_text().splitlines() if "FDSize" in l))
        """
    )
    assert size >= 64


@pytest.mark.server
@pytest.mark.parametrize("workers", ["1", "2"])
def test_every_process_that_takes_connections_has_room(artifacts: Path, workers: str) -> None:
    running = start_server(artifacts, ATTENTION_WORKERS=workers)
    try:
        parent = psutil.Process(running.process.pid)
        processes = [parent, *running.children("attn-worker")]
        assert len(processes) == (1 if workers == "1" else 3)
        assert min(room(process.pid) for process in processes) >= allowed()
    finally:
        running.stop()
