"""Commands printed after an import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from megaptm.commands.output import echo

if TYPE_CHECKING:
    from megaptm.config import Config


def print_next_commands(config: Config, run: Path) -> None:
    """Print the commands that train the imported model."""
    from megaptm.run.build_command import build_arguments
    from megaptm.shell import command_line, typed_path

    folder = typed_path(run.absolute())
    lines = [["train", folder]]
    tokenizer = f"{folder}/tokenizer" if (run / "tokenizer").exists() else "FOLDER_OF_ITS_TOKENIZER"
    if (corpus := str(run.absolute() / "corpus")) in config.data.mix:  # the default, which must still be built
        lines.insert(0, build_arguments(corpus, config, text=None, out=f"{folder}/corpus", tokenizer=tokenizer))
    echo("\n".join(["next:", *(f"  {command_line(line)}" for line in lines)]))
