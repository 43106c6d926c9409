"""`megaptm families`."""

from __future__ import annotations

from typing import Any

import click

from megaptm.commands.output import print_json
from megaptm.errors import UserError


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print numbers for a script.")
def families(name: str | None, as_json: bool) -> None:
    """List the families of models: sizes, parameters, objectives.

    NAME is one of them, or one of your own: package.module:NAME.

    \b
      megaptm families
      megaptm families gpt3
    """
    from megaptm.families import CATALOGUE, find_family

    if name is None:
        chosen = [*CATALOGUE.values()]
    elif (found := find_family(name)) is not None:
        chosen = [found]
    else:
        raise UserError(f"{name} is no family: it may be {', '.join(CATALOGUE)}, or package.module:NAME.")
    if as_json:
        print_json({family.name: _numbers(family) for family in chosen})
    else:
        for family in chosen:
            _show(family)


def _numbers(family: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from megaptm.plan.count import count
    from megaptm.spec import published

    sizes = {
        size: {"parameters": count(published(family, size)), **asdict(table)} for size, table in family.sizes.items()
    }
    return {
        "paper": family.paper,
        "stacks": {stack: asdict(block) for stack, block in family.stacks.items()},
        "objectives": family.objectives,
        "tokenizer": family.tokenizer,
        "vocabulary": family.vocabulary,
        "context": family.context,
        "sizes": sizes,
    }


def _show(family: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    numbers = _numbers(family)
    title = f"{family.name}: {' and '.join(family.stacks)}, {family.paper}; {', '.join(family.objectives)}"
    table = Table("size", title=title, title_justify="left")
    for column in ("parameters", "layers", "width", "heads", "feed-forward"):
        table.add_column(column, justify="right")
    for size, row in numbers["sizes"].items():
        cells = (row[key] for key in ("parameters", "layers", "width", "heads", "ffn"))
        table.add_row(size, *(f"{cell:,}" for cell in cells))
    Console().print(table)
