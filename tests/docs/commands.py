"""The commands that a page shows, as a reader would type them."""

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
    """One command line, continued lines joined, its comment gone."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.text}"


def commands_of(page: Path) -> Iterator[Command]:
    """In order. Commands stand indented by four; what is fenced is output, a recipe or code."""
    # Fences go, their lines stay, so that numbers of lines are right.
    text = FENCED.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not (found := LINE.match(line)):
            continue
        command = found[1]
        while command.endswith("\\"):
            command = command[:-1] + next(lines)[1].strip()
        yield Command(page.name, number, re.sub(r"\s+#\s.*", "", command))


def every_command() -> list[Command]:
    return [command for page in PAGES for command in commands_of(page)]


def inner(words: list[str]) -> list[str] | None:
    """What `megaptm` is given, also where another program starts it; None where none does."""
    if words[0] == "megaptm":
        return words[1:]
    for at in range(len(words) - 2):
        if words[at : at + 3] == ["python", "-m", "megaptm"]:
            return words[at + 3 :]
    return None


def parsed(words: list[str]) -> None:
    """Have click take the words of a command, its options and the number of its arguments, and run nothing."""
    from megaptm.__main__ import main

    command, context = main, main.make_context("megaptm", list(words))
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)
