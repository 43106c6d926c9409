"""What a user did that cannot work, said once, in one sentence; and the exit codes a launcher reads."""

EXIT_FAILURE = 1
EXIT_USER_ERROR = 2
# "Saved; start me again": the answer to SIGTERM and SIGUSR1. 75 is EX_TEMPFAIL of sysexits.h.
EXIT_CONTINUE = 75


class UserError(ValueError):
    """One sentence: what file or field, what is wrong, what to do. The command line prints it without a traceback."""
