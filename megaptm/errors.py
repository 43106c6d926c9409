"""Errors caused by the user or the system, each reported in one sentence, and the exit codes for launchers."""

import errno
import os
import re
import resource
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megaptm.suggest import advice_on_foreign_name, suggest_name

EXIT_FAILURE = 1
EXIT_USER_ERROR = 2
# Saved, to be started again: the exit code after SIGTERM, SIGUSR1 and SIGHUP. 75 is EX_TEMPFAIL of sysexits.h.
EXIT_CONTINUE = 75

# Exit code of a shell's program that was ended by Ctrl-C.
EXIT_INTERRUPTED = 130


LONGEST = 1000
"""Maximum number of characters of an error's sentence."""

QUOTED_PERIOD = re.compile(r"\.\)(?=[:;,.])")
"""Pattern of a period in a quoted message in parentheses, which does not end the error's sentence."""
NO_SPACE = re.compile(r"(.+):([^:/]+)")
"""Pattern of a key that lacks the space before its value, as in `{a:1}`."""


class UserError(ValueError):
    """Error of the user, in one sentence: the file or field, what is wrong, what to do. Shown without a traceback.

    Several mistakes are shown as a line with their number, and one sentence each below it. Quoted text may come from an
    untrusted source: a sentence stays on one line, with limited length and without control characters of terminals. Its
    end is retained, because it says what to do.
    """

    exit_code = EXIT_USER_ERROR

    def __init__(self, *sentences: object) -> None:
        super().__init__(*map(_on_one_line, sentences))

    def __str__(self) -> str:
        return "\n  ".join(self.args)


class FailureError(UserError):
    """Failure, reported in one sentence, that is no mistake of the user: a launcher may start the run again."""

    exit_code = EXIT_FAILURE


def nearest_name_advice(name: object, known: Iterable[str], otherwise: str = "there are {}.") -> str:
    """Return the end of an error message about an unknown name: advice, `did you mean X?`, or the known names."""
    if instead := advice_on_foreign_name(name):
        return instead
    known = list(known)
    meant = suggest_name(name, known)
    return f"did you mean {meant}?" if meant else otherwise.format(", ".join(known) or "none")


def missing_space_advice(key: object, value: object) -> str | None:
    """Return the advice for a key that YAML parsed without its value because the space is missing; None for other
    keys."""
    if value is not None or not (match := NO_SPACE.fullmatch(str(key))):
        return None
    return f"has no space after the colon: write {match[1]}: {match[2]}"


def quote_value(value: Any, max_length: int = 80) -> str:
    """Return a value for an error message: quoted, on one line, truncated."""
    text = ascii(value)
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def read_integer_variable(
    environ: Mapping[str, str], name: str, default: int = 0, *, maximum: int | None = None
) -> int:
    """Return the integer in an environment variable, 0 or more; `default` if the variable is absent or empty."""
    value = environ.get(name) or str(default)
    number = int(value) if re.fullmatch(r"\d{1,18}", value, re.ASCII) else -1
    if number < 0 or (maximum is not None and number > maximum):
        upper = "or more" if maximum is None else f"to {maximum:,}"
        raise UserError(f"{name} ({quote_value(value)}) must be an integer, 0 {upper}: correct or unset this variable.")
    return number


EXPECTATIONS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "objective": "a name, or a mapping of tasks to their options",
    "bool_type": "true or false",
    "string_type": "a string",
    "string_unicode": "valid Unicode",
    "json_invalid": "valid Unicode",  # a value of our own JSON; it has a lone surrogate
    "dict_type": "a mapping",
    "model_type": "a section (a mapping)",
    "tuple_type": "a list",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "too_short": "{min_length} or more entries",
    "too_long": "{max_length} entries",
}


def _expected_value(details: Mapping[str, Any]) -> str:
    """Return the value that a pydantic error expects, in words."""
    form = EXPECTATIONS.get(details["type"])
    if form is None:
        return details["msg"].removeprefix("Input should be ")
    return form.format(**details.get("ctx", {}))


def validation_problem(details: Mapping[str, Any]) -> str:
    """Return a pydantic error as a part of a sentence: `must be X`, or its own message."""
    message = details["msg"].removeprefix("Value error, ").rstrip(".")
    if details["type"] in EXPECTATIONS or message.startswith("Input should be "):
        return f"must be {_expected_value(details)}"
    return message[:1].lower() + message[1:]


def describe_value(value: Any) -> str:
    """Describe an invalid value in an error message: its `repr`, `empty`, or a remark on octal numbers."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?0[0-9_]+", value):
        return f"{value} (octal in one version of YAML and decimal in the next: write it without leading zeros)"
    return "empty" if value is None else repr(value)


def describe_invalid_value(details: Mapping[str, Any]) -> str:
    """Describe pydantic's error in words: `must be X, not Y`, up to the end of the sentence."""
    value = details["input"]
    problem = validation_problem(details)
    if not problem.startswith("must be "):
        return f"({describe_value(value)}): {problem}."
    message = f"{problem}, not {describe_value(value)}"
    known = re.findall(r"'([^']*)'", _expected_value(details)) if details["type"] == "literal_error" else ()
    if not known or not isinstance(value, str):
        return f"{message}."
    if instead := advice_on_foreign_name(value):
        return f"{message}; {instead}"
    meant = suggest_name(value, known)
    return f"{message}; did you mean {meant}?" if meant else f"{message}."


MIN_ADDRESS_SPACE = 3 << 29
"""Minimum address space in bytes, 1.5 GiB. With less, torch and tokenizers abort while they are loaded or train."""
FILES_LIMIT = re.compile("too many open files", re.IGNORECASE)
THREADS_LIMIT = re.compile("resource temporarily unavailable|can't start new thread|pthread_create", re.IGNORECASE)
MEMORY_LIMIT = re.compile(
    "cannot allocate memory|can't allocate memory|failed to map segment|not enough memory|unable to allocate"
    "|bad_?alloc|storage size calculation overflowed",
    re.IGNORECASE,
)
"""Messages of the operating system, numpy and torch about too little host memory. CUDA's message differs."""


@contextmanager
def resource_errors_as_user_errors() -> Iterator[None]:
    """Replace errors about a limit of the process (open files, threads, memory) by a `UserError`."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError, ImportError, SystemError) as error:
        if (sentence := resource_limit_message(error)) is None:
            raise
        raise UserError(sentence) from error


def require_address_space() -> None:
    """Raise `UserError` if a limit leaves less address space than compiled libraries need: they abort without a
    message."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < MIN_ADDRESS_SPACE:
        raise UserError(
            f"this process may use only {limit / 2**20:,.0f} MiB of address space: raise the limit to "
            f"{MIN_ADDRESS_SPACE / 2**20:,.0f} MiB or more (`ulimit -v {MIN_ADDRESS_SPACE >> 10}`, in KiB)."
        )


def resource_limit_message(error: BaseException) -> str | None:
    """Return a description of the process limit that an error is about; None for other errors."""
    message = str(error)
    if FILES_LIMIT.search(message):
        return "too many open files for this process: raise the limit (`ulimit -n 4096`) and start again."
    # An extension module that gets no memory may fail without a reason.
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if (
        MEMORY_LIMIT.search(message)
        or isinstance(error, MemoryError)
        or (isinstance(error, SystemError) and is_limited)
    ):
        first = (message or type(error).__name__).splitlines()[0]
        return (
            f"not enough memory for this process ({first[:200]}): use a smaller model or batch, use more ranks "
            "(`megaptm plan` shows the memory of each), or raise the limit (`ulimit -v`)."
        )
    if THREADS_LIMIT.search(message):
        return (
            "no more threads or processes can be started: raise the limit (`ulimit -u`; `ulimit -v` also counts memory "
            "that threads reserve) and start again."
        )
    return None


CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal or cannot be shown: controls except tab and newline, direction marks,
surrogates."""


def printable(text: str) -> str:
    """Return untrusted text so that a terminal can print it, with control characters escaped, as in `[2J`."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _on_one_line(sentence: object) -> str:
    words = "".join(letter if letter.isprintable() else " " for letter in str(sentence))
    words = QUOTED_PERIOD.sub(")", words)
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 300]} ... {words[-290:]}"


FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, quota or file; EFBIG is the limit of `ulimit -f`."""
FULL_BYTES = 1 << 16
"""Free bytes below which a file system is reported as full."""
SHARED_MEMORY = "/dev/shm"
# Caused by a path that the user chose or by the state of the disk; other system errors are defects of megaptm.
PATH_OR_DISK_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
    *(errno.ELOOP, errno.EIO, errno.ESTALE, errno.ENOTEMPTY, errno.ENXIO),
)


def is_resource_limit(error: OSError) -> bool:
    """Whether a system error is about a full disk or a limit of the process, and not about the file that it names."""
    return error.errno in FULL_DISK or resource_limit_message(error) is not None


@contextmanager
def storage_errors_as_user_errors(path: object) -> Iterator[None]:
    """Replace the system's error about a disk that is full, read-only or gone by a `UserError`.

    The `UserError` names `path` if the system's error names no file.
    """
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or path
        if error.errno in FULL_DISK:
            raise UserError(f"{describe_full_disk(error, path)} and start again.") from error
        if error.errno in PATH_OR_DISK_ERRORS:
            raise UserError(
                f"{where} cannot be used ({describe_path_error(error, where)}): correct that, or choose another path."
            ) from error
        raise


def describe_full_disk(error: OSError, path: object) -> str:
    """Describe what is full, and what to do, for an error of `FULL_DISK`; `path` is used if the error names no
    file."""
    named = error.filename2 or error.filename
    where = named or path
    if error.errno == errno.EFBIG:
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY:
            return f"{where} needs more than the {limit:,} bytes that a file may have here: raise the limit (ulimit -f)"
        return f"{where} is larger than its file system allows: choose a path on another file system"
    if error.errno == errno.EDQUOT:
        return f"your quota on the disk of {where} is used up: remove files there"
    # The system names no file for semaphores and shared memory.
    is_unnamed = named is None and not is_full(path)
    if Path(str(where)).is_relative_to(SHARED_MEMORY) or (is_unnamed and is_full(SHARED_MEMORY)):
        return f"no space left in {SHARED_MEMORY}, the shared memory of processes: enlarge it (docker: --shm-size)"
    if is_unnamed:
        import tempfile  # its imports take 10 ms; `megaptm --help` takes 90 without them

        if is_full(tempfile.gettempdir()):
            where = f"{tempfile.gettempdir()} (TMPDIR)"
    return f"no space left on the disk of {where}: free some space"


def is_full(location: object) -> bool:
    """Whether the file system of a path has almost no room for bytes, or none for files."""
    path = Path(str(location))
    existing = next((parent for parent in (path, *path.parents) if os.path.exists(parent)), None)
    if existing is None:
        return False
    room = os.statvfs(existing)
    return room.f_bavail * room.f_frsize < FULL_BYTES or (room.f_files > 0 and room.f_favail == 0)


def describe_path_error(error: OSError, path: object) -> str:
    """Return the reason of a system error; for a path with a dangling link, as to a disk that is not mounted, the link
    (the system reports "File exists")."""
    for step in (Path(str(path)), *Path(str(path)).parents):
        if os.path.islink(step) and not os.path.exists(step):  # fails also for a name that is too long
            return f"{step} is a link to {os.readlink(step)}, which does not exist"
    return error.strerror or str(error)
