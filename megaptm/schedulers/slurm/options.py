"""Options of sbatch that a user adds: how sbatch reads them, which are refused, and how a script holds them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megaptm.errors import UserError

NODES, PROCESSES, GPUS = "use --nodes", "use --per-node", "use --gpus-per-node"
LOG = "a job's log is logs/job-JOB.log in the run folder"
REFUSED = {
    "nodes": NODES,
    "ntasks": f"{NODES} and --per-node",
    "ntasks-per-node": PROCESSES,
    "tasks-per-node": PROCESSES,
    "ntasks-per-core": PROCESSES,
    "ntasks-per-gpu": PROCESSES,
    "ntasks-per-socket": PROCESSES,
    "gpus": GPUS,
    "gpus-per-socket": GPUS,
    "gpus-per-task": GPUS,
    "gres": GPUS,
    "array": "launch each run separately, or see slurm/array_sweep.sh",
    "output": LOG,
    "error": LOG,
    "job-name": "the job is named after run=FOLDER",
    "test-only": "use --dry-run or megaptm check",
    "wait": "use --follow",
    "wrap": "megaptm writes the script (see it with --dry-run)",
    "parsable": "the job ids are printed",
    "chdir": "set MEGAPTM_HOME to the folder in which jobs run",
}
"""Options of sbatch that are refused, with what to use instead. megaptm must know the size of a job, its name and its
log."""
PARSED = ("gpus-per-node", "partition", "signal", "time")
"""Options of sbatch whose values megaptm reads; they must not be abbreviated either."""
SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "G": "gpus",
    "a": "array",
    "o": "output",
    "e": "error",
    "J": "job-name",
    "W": "wait",
    "D": "chdir",
    "p": "partition",
    "t": "time",
}
FLAGS = "HIOQVhkuvs"
"""Short options of sbatch without a value, which may precede others in the same word: -Hn2. -W is refused anyway."""


@dataclass(frozen=True)
class SbatchOption:
    """Option of sbatch with its value."""

    name: str
    """Long name of the option, without dashes. A short option that megaptm does not know keeps its letter."""
    value: str


def parse_sbatch_options(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the words of sbatch options as passed to sbatch. Raise UserError for options that megaptm sets itself."""
    words: list[str] = []
    for text in texts:
        quote_for_script(text, "--sbatch", forbidden="\0")
        try:
            words += shlex.split(text)
        except ValueError:
            raise UserError(f"--sbatch={text}: a quote is not closed.") from None
    for word in words:
        quote_for_script(word, "--sbatch", forbidden='"\\')
    if words and not words[0].startswith("-"):
        raise UserError(f"--sbatch={words[0]}: options of sbatch start with a dash: --sbatch=--partition=large.")
    for option in _split_options(words):
        _refuse_option(option)
    return tuple(words)


def sbatch_option_value(words: Sequence[str], name: str) -> str | None:
    """Return the value that sbatch would use for an option: the last one."""
    return next((option.value for option in reversed(list(_split_options(words))) if option.name == name), None)


def _split_options(words: Sequence[str]) -> Iterator[SbatchOption]:
    """Split words into sbatch options as sbatch does: `--name=value`, `--name value`, `-nvalue`, `-n value`, `-Hn
    value`."""
    for word, after in zip(words, [*words[1:], "-"], strict=False):
        following = "" if after.startswith("-") else after
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield SbatchOption(name, value if equals else following)
        elif word.startswith("-"):
            letters = word[1:].lstrip(FLAGS)
            if letters:
                yield SbatchOption(SHORT.get(letters[0], letters[0]), letters[1:].lstrip("=") or following)


def _refuse_option(option: SbatchOption) -> None:
    name = option.name
    if name in REFUSED and not (name == "gres" and "gpu" not in option.value):
        short = next((f" (-{letter})" for letter, long in SHORT.items() if long == name), "")
        raise UserError(f"--sbatch must not contain --{name}{short}: {REFUSED[name]}.")
    if name not in (*REFUSED, *PARSED) and len(name) > 1:
        for full_name in (*REFUSED, *PARSED):
            if full_name.startswith(name):
                raise UserError(
                    f"--sbatch must not contain --{name}, which sbatch may read as --{full_name}: write the full name."
                )


def quote_for_script(text: str, name: str, *, forbidden: str = '"\\%') -> str:
    r"""Return `text` as a word of a script's #SBATCH line. Raise UserError with `name` if that is impossible.

    `forbidden` are characters that `text` must not have: sbatch cannot escape quotes within quotes or backslashes, and
    expands % in file names. Line breaks and control characters are always refused.
    """
    if match := re.search(rf"[\x00-\x1f\x7f{re.escape(forbidden)}]", text):
        raise UserError(f"{name} ({text!r}) contains {match[0]!r}, which sbatch does not read literally: remove it.")
    return text if re.fullmatch(r"[\w@+=:,./%-]+", text, re.ASCII) else f'"{text}"'


def sbatch_lines(words: Sequence[str]) -> list[str]:
    """Return sbatch options as lines of a script, each with its value."""
    lines: list[str] = []
    for word in words:
        quoted = quote_for_script(word, "an option of sbatch", forbidden='"\\')
        if word.startswith("-"):
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return lines
