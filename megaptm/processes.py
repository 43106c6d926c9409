"""Processes that end with the one that started them, whatever ended that. Linux; elsewhere nothing is promised."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

from megaptm.errors import EXIT_FAILURE

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> Callable[[], None]:
    """What a child of process `parent` calls first, to be killed by the kernel, also while it is stopped, when it dies.

    Made before the fork: between fork and exec a child may not import or allocate much. The kernel counts the thread
    that forked as the parent: start children from one that lives as long as its process.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def begin() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the promise was made
            os._exit(EXIT_FAILURE)

    return begin
