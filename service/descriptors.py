"""Room for the descriptors that connections take."""

import contextlib
import fcntl
import os
import resource
import sys

MOST_AT_ONCE = 1 << 16
"""Descriptors that there is room for from the start: half a megabyte of the kernel's memory."""


def make_room() -> None:
    """Allow this process as many descriptors as the system lets it have, and let the kernel make room for them now.

    It would otherwise do so as connections come, each time there are twice as many, and a process of several threads
    waits for that until every core has passed through the scheduler (`expand_fdtable`, fs/file.c of Linux): 10 to 20
    ms in which the event loop stands still.
    """
    if sys.platform != "linux":
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    last = (MOST_AT_ONCE if most == resource.RLIM_INFINITY else min(most, MOST_AT_ONCE)) - 1
    with open(os.devnull, "rb") as null, contextlib.suppress(OSError):  # only time is lost without it
        os.close(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, last))
