"""Commands that families add: `megaptm import FAMILY` and `megaptm export FAMILY`, for files of their papers' code."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megaptm.commands.output import echo
from megaptm.families import FOLDERS

if TYPE_CHECKING:
    from megaptm.config import Config


def family_commands(name: str) -> Iterator[click.Command]:
    """Yield the command `IMPORT` or `EXPORT` of each family whose `commands.py` has one."""
    for folder in FOLDERS:
        if find_spec(module := f"megaptm.families.{folder}.commands"):
            command = getattr(import_module(module), name, None)
            if command is not None:
                yield command


def print_next_commands(config: Config, run: Path) -> None:
    """Print the commands that train the imported model."""
    from megaptm.run.build_command import build_words
    from megaptm.shell import command_line, typed_path

    folder = typed_path(run.absolute())
    lines = [["train", folder]]
    tokenizer = f"{folder}/tokenizer" if (run / "tokenizer").exists() else "FOLDER_OF_ITS_TOKENIZER"
    if (corpus := str(run.absolute() / "corpus")) in config.data.mix:  # the default, which must still be built
        lines.insert(0, build_words(corpus, config, text=None, out=f"{folder}/corpus", tokenizer=tokenizer))
    echo("\n".join(["next:", *(f"  {command_line(line)}" for line in lines)]))
