"""Retries for object stores that do not respond. Each attempt has a deadline."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from megaptm.credentials import brief_message
from megaptm.errors import FULL_DISK, UserError, printable

T = TypeVar("T")

# Modules whose errors are retried. An error of other code is a bug.
NETWORK_MODULES = (
    "aiobotocore",
    "aiohttp",
    "botocore",
    "fsspec",
    "google",
    "gcsfs",
    "adlfs",
    "azure",
    "requests",
    "s3fs",
)
DENIED_ERRORS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "ParamValidationError",
    "NoAuthTokenError",
)

PERMANENT_STATUSES = (405, 406, 410, 414, 416, 451)
"""HTTP status codes after which a request is not retried. 400 is not among them: aiohttp also reports it for a
truncated response."""


class OutageError(UserError):
    """Raised if a call still fails after all retries."""


def _to_stderr(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Deadlines and retries of calls to a server."""

    seconds: float = 600.0
    """Total seconds of retries while the server fails or does not respond."""
    deadline: float = 60.0
    """Seconds after which an attempt of a request is aborted; doubled for each further 16 MiB that it sends."""
    pause: float = 0.5
    """Seconds before the second attempt; doubled each time up to `max_pause`. Up to half of it is random."""
    max_pause: float = 15.0
    report_after: float = 5.0
    """Seconds of failure before the first message; later messages follow after six times as many."""
    report: Callable[[str], None] = _to_stderr


def with_retries(call: Callable[[], T], *, target: str, retry: RetryPolicy, deadline: float | None = None) -> T:
    """Return the result of `call` to a server, which is repeated on failures. `target` is its URL.

    Raises `UserError` immediately for permanent errors (missing file, denied access), and after `retry.seconds`
    otherwise.
    """
    seconds = retry.deadline if deadline is None else deadline
    return retry_call(
        lambda: run_with_deadline(seconds, call),
        target=target,
        retry=retry,
        refuse=lambda error: _refuse_permanent(error, target),
        remedy="check that its server responds, and start again.",
    )


def retry_call(
    call: Callable[[], T], *, target: str, retry: RetryPolicy, refuse: Callable[[Exception], None], remedy: str
) -> T:
    """Return the result of `call` to a server, which is repeated on failures. The function `refuse` raises permanent
    errors.

    Raises `OutageError` with `remedy` after `retry.seconds`.
    """
    started, report_at, reported = time.monotonic(), retry.report_after, False
    for pause in _pause_seconds(retry):
        try:
            result = call()
        except Exception as error:
            refuse(error)
            problem = brief_message(error)
        else:
            if reported:
                retry.report(f"{target} answers again after {time.monotonic() - started:.0f} s.")
            return result
        waited = time.monotonic() - started
        if waited >= retry.seconds:
            raise OutageError(f"{target} could not be reached for {waited:.0f} s ({problem}): {remedy}")
        remaining = retry.seconds - waited
        if waited + pause >= report_at:
            retry.report(f"{target} does not answer ({problem}); retrying for another {remaining:.0f} s.")
            report_at, reported = waited + 6 * retry.report_after, True
        time.sleep(min(pause, remaining))
    raise AssertionError("unreachable: `_pause_seconds` never ends")


def _refuse_permanent(error: Exception, target: str) -> None:
    """Raise permanent errors of a server: as `UserError` if the user can fix them, else unchanged."""
    if isinstance(error, UserError):
        raise error
    if isinstance(error, FileNotFoundError):
        raise UserError(f"{target} does not exist: check the path or URL.") from None
    denied = isinstance(error, PermissionError) or type(error).__name__ in DENIED_ERRORS
    if denied or getattr(error, "status", None) in (401, 403):  # status of aiohttp's web errors
        raise UserError(f"access to {target} is denied ({brief_message(error)}): check the credentials.") from None
    if getattr(error, "status", None) in PERMANENT_STATUSES:
        raise UserError(f"{target} cannot be read ({brief_message(error)}): check the URL.") from None
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        raise error
    if not isinstance(error, OSError | EOFError) and type(error).__module__.partition(".")[0] not in NETWORK_MODULES:
        raise error


def _pause_seconds(retry: RetryPolicy) -> Iterator[float]:
    pause = retry.pause
    while True:
        # Random, so that a thousand processes do not all retry at once when their server is back.
        yield pause * random.uniform(0.5, 1.0)
        pause = min(2 * pause, retry.max_pause)


def run_with_deadline(seconds: float, call: Callable[[], T]) -> T:
    """Run a call to a server in a thread and wait for at most `seconds`. A thread that hangs is abandoned."""
    box: dict[str, Any] = {}

    def run() -> None:
        try:
            box["result"] = call()
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=run, daemon=True, name="megaptm-storage")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    if "error" in box:
        raise box["error"]
    return box["result"]
