"""`megaptm config`."""

from __future__ import annotations

from pathlib import Path

import click

from megaptm.commands.options import overrides_argument


@click.group()
def config() -> None:
    """What a config may say, and what one says.

    \b
      megaptm config keys train
      megaptm config show configs/gpt2/tiny.yaml
    """


@config.command()
@click.argument("section", required=False)
@click.option("--markdown", is_flag=True, help="As docs/config.md has them.")
def keys(section: str | None, markdown: bool) -> None:
    """Every key of a config: its type, its default, whether it may change on resume, what it means.

    SECTION is one of them, or a key, by its path or its name alone.

    \b
      megaptm config keys
      megaptm config keys optimizer
      megaptm config keys train.batch
    """
    from megaptm.config.reference import as_markdown, find_sections

    sections = find_sections(section)
    if markdown:
        click.echo(as_markdown(sections), nl=False)
        return
    from rich.table import Table
    from rich.text import Text

    from megaptm.console import Console

    console = Console(highlight=False)
    for one in sections:
        console.print(Text.assemble((one.name or "at the top", "bold"), f": {one.meaning}"))
        table = Table(box=None, pad_edge=True, show_header=False)
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(ratio=1)
        table.add_column(ratio=3)
        for key in one.keys:
            table.add_row(key.path, Text(f"{key.type} ({key.default}); on resume: {key.on_resume}"), Text(key.meaning))
        console.print(table)
        console.print()


@config.command()
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
def show(config: Path, overrides: tuple[str, ...]) -> None:
    """Print CONFIG as `megaptm train` would take it: what it extends and every number of the model written out.

    CONFIG is a YAML file, the name of one that comes with megaptm, or the folder of a run.

    \b
      megaptm config show configs/gpt3/175b.yaml devices=1024
      megaptm config show runs/gpt2-tiny
    """
    from megaptm.config import dump
    from megaptm.run.folder import read_config

    click.echo(dump(read_config(config, overrides)), nl=False)
