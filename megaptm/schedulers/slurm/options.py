"""Options of sbatch that a user adds: how sbatch reads them, which are not the user's, how a script has them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megaptm.errors import UserError

NODES, PROCESSES, GPUS = "give --nodes", "give --per-node", "give --gpus-per-node"
LOG = "a job's log is logs/job-JOB.log in the run folder"
# Of a job's shape, its name and its log everything else depends on what megaptm knows of them.
NOT_HERE = {
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
    "array": "launch each run by itself, or see slurm/array_sweep.sh",
    "output": LOG,
    "error": LOG,
    "job-name": "a job is called as its run=FOLDER",
    "test-only": "give --dry-run, or ask megaptm check",
    "wait": "give --follow",
    "wrap": "the script is written for you (--dry-run shows it)",
    "parsable": "the numbers of the jobs are printed",
    "chdir": "set MEGAPTM_HOME to the folder that jobs run in",
}
"""Option -> what to do instead."""
READ = ("gpus-per-node", "partition", "signal", "time")
"""Options whose values are looked at; these are not to be abbreviated either."""
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
"""Short options without a value, after which others may follow in one word; -W is one that is refused."""


@dataclass(frozen=True)
class Option:
    """One of them."""

    name: str
    """Without dashes; a short one that means nothing to us is a letter."""
    value: str


def read_options(words: Sequence[str]) -> tuple[str, ...]:
    """The words as sbatch would be given them, one each; a `UserError` for one that is asked for in another way."""
    found: list[str] = []
    for text in words:
        script_word(text, "--sbatch", but="\0")
        try:
            found += shlex.split(text)
        except ValueError:
            raise UserError(f"--sbatch={text}: a quote is not closed.") from None
    for word in found:
        script_word(word, "--sbatch", but='"\\')
    if found and not found[0].startswith("-"):
        raise UserError(f"--sbatch={found[0]}: options of sbatch begin with a dash: --sbatch=--partition=large.")
    for one in options(found):
        _refuse(one)
    return tuple(found)


def options(words: Sequence[str]) -> Iterator[Option]:
    """How sbatch understands them: `--name=value`, `--name value`, `-nvalue`, `-n value`, `-Hn value`."""
    for word, after in zip(words, [*words[1:], "-"], strict=False):
        following = "" if after.startswith("-") else after
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield Option(name, value if equals else following)
        elif word.startswith("-"):
            letters = word[1:].lstrip(FLAGS)
            if letters:
                yield Option(SHORT.get(letters[0], letters[0]), letters[1:].lstrip("=") or following)


def option(words: Sequence[str], name: str) -> str | None:
    """The value that sbatch would take of an option; the last one counts."""
    return next((one.value for one in reversed(list(options(words))) if one.name == name), None)


def _refuse(one: Option) -> None:
    if one.name in NOT_HERE and not (one.name == "gres" and "gpu" not in one.value):
        raise UserError(f"--sbatch may not hold {_written(one.name)}: {NOT_HERE[one.name]}.")
    if one.name not in (*NOT_HERE, *READ) and len(one.name) > 1:
        for name in (*NOT_HERE, *READ):
            if name.startswith(one.name):
                raise UserError(f"--sbatch may not hold --{one.name}, which sbatch may read as --{name}: write it out.")


def _written(name: str) -> str:
    short = next((letter for letter, long in SHORT.items() if long == name), None)
    return f"--{name} (-{short})" if short else f"--{name}"


def script_word(text: str, what: str, *, but: str = '"\\%') -> str:
    r"""`text` as a word of a script's #SBATCH line; a `UserError` where there is no way to write it.

    `but` are characters that `text` may not have: sbatch knows no way to write a quote within quotes or a backslash,
    and takes % in the name of a file for the beginning of a number. No line of a script can hold a line break.
    """
    if bad := re.search(rf"[\x00-\x1f\x7f{re.escape(but)}]", text):
        raise UserError(
            f"{what} ({text!r}) has {bad[0]!r} in it, which sbatch would not take as it is: write it without."
        )
    return text if re.fullmatch(r"[\w@+=:,./%-]+", text, re.ASCII) else f'"{text}"'


def script_lines(words: Sequence[str]) -> list[str]:
    """The options as lines of a script, a value beside its option."""
    lines: list[str] = []
    for word in words:
        written = script_word(word, "an option of sbatch", but='"\\')
        if word.startswith("-"):
            lines.append(written)
        else:
            lines[-1] += f" {written}"
    return lines
