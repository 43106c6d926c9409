"""Commands that pages show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from tests import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PROGRAMS = ("megaptm", "make", "sbatch", "ray", "python", "pip", "sed", "source")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(rf"^ {{4}}(?:\$ )?((?:{'|'.join(PROGRAMS)}) .*)$")


@dataclass(frozen=True)
class Command:
    """One command line: continued lines are joined, the comment is removed."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.text}"


def commands_of(page: Path) -> Iterator[Command]:
    """Yield the commands of a page in order: indented lines. Fenced blocks are output, recipes or code."""
    # Keep the lines of fenced blocks, so that line numbers are right.
    text = FENCED.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not (match := LINE.match(line)):
            continue
        command = match[1]
        while command.endswith("\\"):
            command = command[:-1] + next(lines)[1].strip()
        yield Command(page.name, number, re.sub(r"\s+#\s.*", "", command))


def all_commands() -> list[Command]:
    return [command for page in PAGES for command in commands_of(page)]


def megaptm_arguments(words: list[str]) -> list[str] | None:
    """Return the arguments of `megaptm` in a command, also after another program. None if `megaptm` is not run."""
    if words[0] == "megaptm":
        return words[1:]
    for index in range(len(words) - 2):
        if words[index : index + 3] == ["python", "-m", "megaptm"]:
            return words[index + 3 :]
    return None


def parse_arguments(words: list[str]) -> None:
    """Parse command, options and number of arguments with click, and run nothing."""
    from megaptm.__main__ import main

    command, context = main, main.make_context("megaptm", list(words))
    while isinstance(command, click.Group):
        name, subcommand, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        assert subcommand is not None
        command, context = subcommand, subcommand.make_context(name, arguments, parent=context)
