"""What a user did that cannot work, said once, in one sentence; and the exit codes a launcher reads."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_FAILURE = 1
EXIT_USER_ERROR = 2
# "Saved; start me again": the answer to SIGTERM and SIGUSR1. 75 is EX_TEMPFAIL of sysexits.h.
EXIT_CONTINUE = 75


class UserError(ValueError):
    """One sentence: what file or field, what is wrong, what to do. The command line prints it without a traceback."""


@contextmanager
def full_disk_told(place: object) -> Iterator[None]:
    """A full disk is for the user to mend: a sentence takes the place of the system's error, which names no file."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(
            f"no space left on the disk of {error.filename or place}: make room there and start again."
        ) from error
