"""Command `megaptm config`."""

from __future__ import annotations

from pathlib import Path

import click

from megaptm.commands.options import overrides_argument


@click.group("config")
def config_group() -> None:
    """Describe the keys of a config, and show a complete config.

    \b
      megaptm config keys train
      megaptm config show configs/gpt2/tiny.yaml
    """


@config_group.command("keys")
@click.argument("section", required=False)
@click.option("--markdown", is_flag=True, help="Print the page docs/config.md.")
def config_keys_command(section: str | None, markdown: bool) -> None:
    """List the keys of a config: type, default, whether the key may change on resume, and meaning.

    SECTION selects a section, or a key by its path or name.

    \b
      megaptm config keys
      megaptm config keys optimizer
      megaptm config keys train.batch
    """
    from megaptm.config.reference import config_keys_as_markdown, find_sections

    sections = find_sections(section)
    if markdown:
        click.echo(config_keys_as_markdown(sections), nl=False)
        return
    from rich.table import Table
    from rich.text import Text

    from megaptm.console import Console

    console = Console(highlight=False)
    for section_keys in sections:
        console.print(Text.assemble((section_keys.name or "top level", "bold"), f": {section_keys.meaning}"))
        table = Table(box=None, pad_edge=True, show_header=False)
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(ratio=1)
        table.add_column(ratio=3)
        for key in section_keys.keys:
            table.add_row(key.path, Text(f"{key.type} ({key.default}); on resume: {key.on_resume}"), Text(key.meaning))
        console.print(table)
        console.print()


@config_group.command("show")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
def show_config_command(config: Path, overrides: tuple[str, ...]) -> None:
    """Print CONFIG as `megaptm train` reads it, with the configs that it extends and all sizes of the model.

    CONFIG is a YAML file, the name of a shipped config, or a run folder.

    \b
      megaptm config show configs/gpt3/175b.yaml devices=1024
      megaptm config show runs/gpt2-tiny
    """
    from megaptm.config import config_to_yaml
    from megaptm.run.folder import read_config

    click.echo(config_to_yaml(read_config(config, overrides)), nl=False)
