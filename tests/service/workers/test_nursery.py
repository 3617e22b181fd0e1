"""Processes forked by a nursery, in a process that has no other threads."""

import subprocess
import sys
import textwrap
from pathlib import Path

from service.workers import nursery

BEFORE = """
import asyncio, json, os, signal, socket, sys, time
from pathlib import Path
from service.workers import nursery
from service.workers.nursery import Nursery, Process

nursery.IMPORTED = ("child",)
nursery.NAMES["child"] = b"attn-child"

async def said(kept, module="child"):
    ours, theirs = socket.socketpair()
    with theirs:
        process = await kept.start(module, (theirs.fileno(),))
    with ours:
        return process, await asyncio.to_thread(ours.recv, 4096)
"""

CHILD = """
import json, os, random, signal, socket, sys, threading, time

imported_by = os.getpid()

def sockets():
    for entry in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{entry}").startswith("socket:")
        except OSError:  # what the folder was read with
            continue

def main():
    (descriptor,) = map(int, sys.argv[1:])
    end = socket.socket(fileno=descriptor)
    end.send(json.dumps({
        "pid": os.getpid(), "group": os.getpgid(0), "imported_by": imported_by,
        "name": open("/proc/self/comm").read().strip(), "input": os.readlink("/proc/self/fd/0"),
        "sockets": sum(sockets()), "threads": threading.active_count(), "drawn": random.getrandbits(64),
        "ends_by": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    }).encode())
    end.close()
    sys.exit(WHAT)

if __name__ == "__main__":
    main()
"""


def in_a_process(folder: Path, script: str, what: str = "3") -> tuple[list[str], str]:
    """The lines that a script prints, and what it writes to standard error."""
    (folder / "child.py").write_text(CHILD.replace("WHAT", what))
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + textwrap.dedent(script)],
        capture_output=True, text=True, timeout=100, env={"PYTHONPATH": f"{folder}:{':'.join(sys.path)}"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_what_is_forked_is_this_process_s_child_and_has_nothing_but_its_descriptors(tmp_path: Path) -> None:
    lines, errors = in_a_process(
        tmp_path,
        """
        listener = socket.create_server(("127.0.0.1", 0))
        kept = Nursery(listener)

        async def main():
            drawn = set()
            for _ in range(2):
                process, message = await said(kept)
                await process.wait()
                found = json.loads(message)
                drawn.add(found["drawn"])
                print(process.returncode, found["pid"] == process.pid == found["group"],
                      found["name"], found["input"], found["sockets"], found["threads"], found["ends_by"],
                      found["imported_by"] == kept._pid)
            print(len(drawn))
            kept.close()

        asyncio.run(main())
        """,
    )

    assert lines == ["3 True attn-child /dev/null 1 1 True True"] * 2 + ["2"]  # ids of requests are drawn
    assert not errors


def test_one_that_is_killed_says_by_what(tmp_path: Path) -> None:
    lines, _ = in_a_process(
        tmp_path,
        """
        kept = Nursery()

        async def main():
            process, _ = await said(kept)
            print(process.returncode)
            process.kill()
            await process.wait()
            print(process.returncode)
            process.kill()
            kept.close()

        asyncio.run(main())
        """,
        "time.sleep(60)",
    )

    assert lines == ["None", "-9"]


def test_an_error_of_one_is_written_and_ends_only_that_one(tmp_path: Path) -> None:
    lines, errors = in_a_process(
        tmp_path,
        """
        kept = Nursery()

        async def main():
            for _ in range(2):
                process, _ = await said(kept)
                await process.wait()
                print(process.returncode)
            kept.close()

        asyncio.run(main())
        """,
        "1 // 0",
    )

    assert lines == ["1", "1"]
    assert errors.count("ZeroDivisionError") == 2


def test_without_the_nursery_processes_are_started_as_programs(tmp_path: Path) -> None:
    lines, errors = in_a_process(
        tmp_path,
        """
        kept = Nursery()

        async def main():
            _, message = await said(kept)
            os.kill(kept._pid, signal.SIGKILL)
            process, message = await said(kept)
            await process.wait()
            found = json.loads(message)
            print(process.returncode, found["pid"] == process.pid == found["group"],
                  found["input"], found["sockets"])
            kept.close()

        asyncio.run(main())
        """,
    )

    assert lines == ["3 True /dev/null 1"]
    assert "the nursery has ended: child takes seconds to start" in errors


def test_nothing_is_started_once_it_is_closed_and_whoever_waits_is_told(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    lines, _ = in_a_process(
        tmp_path,
        """
        nursery.IMPORTED = ("slow",)
        kept = Nursery()

        async def main():
            waiting = asyncio.ensure_future(kept.start("child", (0,)))
            await asyncio.sleep(0.1)
            kept.close()
            print(await waiting, await kept.start("child", (0,)))
            kept.close()

        asyncio.run(main())
        """,
    )

    assert lines == ["None None"]


def test_it_ends_with_whoever_has_forked_it(tmp_path: Path) -> None:
    lines, _ = in_a_process(
        tmp_path,
        """
        reading, writing = os.pipe()
        if not os.fork():
            os.close(reading)
            kept = Nursery()
            os.write(writing, str(kept._pid).encode())
            os._exit(0)
        os.close(writing)
        print(os.read(reading, 32).isdigit(), os.read(reading, 1))  # the end: the last who held the pipe has ended
        """,
    )

    assert lines == ["True b''"]


def test_what_is_imported_before_starts_no_thread() -> None:
    """Such a thread would be missing in what is forked; NumPy's own are made anew there by OpenBLAS."""
    script = f"""
    import os
    import numpy
    before = len(os.listdir("/proc/self/task"))
    from importlib import import_module
    for module in {nursery.IMPORTED!r}:
        import_module(module)
    import sys
    print(len(os.listdir("/proc/self/task")) - before, "torch" in sys.modules, "onnxruntime" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, timeout=100
    )

    assert done.stdout.split() == ["0", "True", "False"]
