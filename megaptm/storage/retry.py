"""Retries for object stores that do not respond. Each attempt has a deadline."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from megaptm.credentials import in_brief
from megaptm.errors import FULL_DISK, UserError, printable

T = TypeVar("T")

# Modules whose errors are retried. An error of other code is a bug.
NETWORKS = ("aiobotocore", "aiohttp", "botocore", "fsspec", "google", "gcsfs", "adlfs", "azure", "requests", "s3fs")
DENIED = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "ParamValidationError",
    "NoAuthTokenError",
)

FINAL = (405, 406, 410, 414, 416, 451)
"""HTTP status codes that are not retried. 400 is not among them: aiohttp also reports it for a truncated response."""


class OutageError(UserError):
    """Raised if a call still fails after all retries."""


def to_stderr(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Deadlines and retries of calls to a server."""

    seconds: float = 600.0
    """Total seconds of retries while the server fails or does not respond."""
    deadline: float = 60.0
    """Seconds after which an attempt is aborted; doubled for each further 16 MiB that it sends."""
    pause: float = 0.5
    """Seconds before the second attempt; doubled each time up to `longest_pause`. Up to half of it is random."""
    longest_pause: float = 15.0
    tell_after: float = 5.0
    """Seconds of failure before the first message; later messages follow after six times as many."""
    tell: Callable[[str], None] = to_stderr


def with_retries(call: Callable[[], T], *, what: str, retry: RetryPolicy, deadline: float | None = None) -> T:
    """Return the result of `call`, which is repeated on failures. `what` is its URL.

    Raises `UserError` immediately for permanent errors (missing file, denied access), and after `retry.seconds`
    otherwise.
    """
    seconds = retry.deadline if deadline is None else deadline
    return keep_trying(
        lambda: within(seconds, call),
        what=what,
        retry=retry,
        refuse=lambda error: refuse_permanent(error, what),
        remedy="see that its server answers, and start again.",
    )


def keep_trying(
    call: Callable[[], T], *, what: str, retry: RetryPolicy, refuse: Callable[[Exception], None], remedy: str
) -> T:
    """Return the result of `call`, which is repeated on failures. `refuse` raises permanent errors.

    Raises `OutageError` with `remedy` after `retry.seconds`.
    """
    begun, tell_at, told = time.monotonic(), retry.tell_after, False
    for pause in _pauses(retry):
        try:
            answer = call()
        except Exception as error:
            refuse(error)
            problem = in_brief(error)
        else:
            if told:
                retry.tell(f"{what} answers again after {time.monotonic() - begun:.0f} s.")
            return answer
        waited = time.monotonic() - begun
        if waited >= retry.seconds:
            raise OutageError(f"{what} could not be reached for {waited:.0f} s ({problem}): {remedy}")
        left = retry.seconds - waited
        if waited + pause >= tell_at:
            retry.tell(f"{what} does not answer ({problem}); trying for another {left:.0f} s.")
            tell_at, told = waited + 6 * retry.tell_after, True
        time.sleep(min(pause, left))
    raise AssertionError("pauses do not end")


def refuse_permanent(error: Exception, what: str) -> None:
    """Raise permanent errors: as `UserError` if the user can fix them, else unchanged."""
    if isinstance(error, UserError):
        raise error
    if isinstance(error, FileNotFoundError):
        raise UserError(f"{what} does not exist: check the address.") from None
    denied = isinstance(error, PermissionError) or type(error).__name__ in DENIED
    if denied or getattr(error, "status", None) in (401, 403):  # status of aiohttp's web errors
        raise UserError(f"access to {what} is denied ({in_brief(error)}): check the credentials.") from None
    if getattr(error, "status", None) in FINAL:
        raise UserError(f"{what} cannot be read ({in_brief(error)}): check the address.") from None
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        raise error
    if not isinstance(error, OSError | EOFError) and type(error).__module__.partition(".")[0] not in NETWORKS:
        raise error


def _pauses(retry: RetryPolicy) -> Iterator[float]:
    pause = retry.pause
    while True:
        # Random, so that a thousand processes do not all retry at once when their server is back.
        yield pause * random.uniform(0.5, 1.0)
        pause = min(2 * pause, retry.longest_pause)


def within(seconds: float, call: Callable[[], T]) -> T:
    """Run `call` in a thread and wait for at most `seconds`. A thread that hangs is abandoned."""
    box: dict[str, Any] = {}

    def run() -> None:
        try:
            box["answer"] = call()
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=run, daemon=True, name="megaptm-storage")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    if "error" in box:
        raise box["error"]
    return box["answer"]
