"""`megaptm families`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from megaptm.commands.output import print_json
from megaptm.errors import UserError, nearest

if TYPE_CHECKING:
    from megaptm.config import Layout
    from megaptm.families.words import WordFamily


def _names(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    from megaptm.families import FAMILIES

    return [name for name in FAMILIES if name.startswith(begun)]


@click.command()
@click.argument("name", required=False, shell_complete=_names)
@click.option("--json", "as_json", is_flag=True, help="Print numbers for a script.")
def families(name: str | None, as_json: bool) -> None:
    """List the families of models: sizes, parameters, objectives and Hugging Face's model that is the same.

    NAME is one of them, told with the layouts that come with megaptm, or one of your own: package.module:NAME.

    \b
      megaptm families
      megaptm families gpt3
    """
    from megaptm.families import FAMILIES, find_family
    from megaptm.families.words import WordFamily

    if name is None:
        chosen = [*FAMILIES.values()]
    elif (found := find_family(name)) is not None:
        chosen = [found]
    else:
        raise UserError(f"{name} is no family; {nearest(name, FAMILIES, 'there are {}, or package.module:NAME.')}")
    if as_json:
        print_json(
            {
                family.name: _word_numbers(family)
                if isinstance(family, WordFamily)
                else {**_numbers(family), "layouts": _layout_numbers(family)}
                for family in chosen
            }
        )
    else:
        for family in chosen:
            if isinstance(family, WordFamily):
                _show_words(family)
            else:
                _show(family, with_layouts=name is not None)


def _word_numbers(family: WordFamily) -> dict[str, Any]:
    from dataclasses import asdict

    from megaptm.families.words import WordSpec

    sizes = {
        size: {
            "parameters": WordSpec(family=family, size=table, vocabulary=family.vocabulary).parameters,
            **asdict(table),
        }
        for size, table in family.sizes.items()
    }
    return {
        "paper": family.paper,
        "objectives": family.objectives,
        "tokenizer": family.tokenizer,
        "specials": family.specials,
        "vocabulary": family.vocabulary,
        "sizes": sizes,
    }


def _show_words(family: WordFamily) -> None:
    from rich.table import Table

    from megaptm.console import Console

    title = f"{family.name}: word vectors, {family.vocabulary:,} words, {family.paper}; {', '.join(family.objectives)}"
    table = Table("size", title=title, title_justify="left")
    columns = ("parameters", *family.numbers)
    for column in columns:
        table.add_column(column, justify="right")
    for size, row in _word_numbers(family)["sizes"].items():
        table.add_row(size, *(f"{cell:,}" if type(cell) is int else str(cell) for cell in map(row.get, columns)))
    Console().print(table)


def _numbers(family: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from megaptm.hub.counterparts import models_of
    from megaptm.objectives import objective_of
    from megaptm.plan.count import count_parameters
    from megaptm.spec import published

    sizes = {
        size: {"parameters": count_parameters(published(family, size)), **asdict(table)}
        for size, table in family.sizes.items()
    }
    return {
        "paper": family.paper,
        "stacks": {stack: asdict(block) for stack, block in family.stacks.items()},
        "objectives": family.objectives,
        "supervised": [name for name in family.objectives if objective_of(name).supervised],
        "hugging_face": models_of(family),
        "tokenizer": family.tokenizer,
        "specials": family.specials,
        "vocabulary": family.vocabulary,
        "context": family.context,
        "sizes": sizes,
    }


def _layout_numbers(family: Any) -> dict[str, dict[int, dict[str, Any]]]:
    return {
        config: {devices: layout.model_dump() for devices, layout in layouts.items()}
        for config, layouts in _layouts(family).items()
    }


def _layouts(family: Any) -> dict[str, dict[int, Layout]]:
    """Config of the family that comes with megaptm -> devices -> the layout that it has for so many.

    Each file is read once, whatever it has layouts for; it takes a tenth of a second all the same.
    """
    from megaptm.config import UncheckedConfig
    from megaptm.config.shipped import CONFIGS
    from megaptm.families import FAMILIES

    name = family.name
    if FAMILIES.get(name) is not family:
        return {}
    found = {}
    for path in sorted((CONFIGS / name).glob("*.yaml"), key=lambda path: path.stem):
        config = UncheckedConfig.read(path)
        found[f"{name}/{path.stem}"] = {
            devices: config.with_override(f"devices={devices}").load().layout for devices in config.offered_devices
        }
    return found


def _show(family: Any, *, with_layouts: bool) -> None:
    from rich.table import Table

    from megaptm.console import Console
    from megaptm.report.terminal import layout_title

    numbers = _numbers(family)
    supervised = dict.fromkeys(numbers["supervised"], " (supervised)")
    objectives = ", ".join(f"{name}{supervised.get(name, '')}" for name in family.objectives)
    title = f"{family.name}: {' and '.join(family.stacks)}, {family.paper}; {objectives}"
    at_hub = " and ".join(numbers["hugging_face"]) or "none"
    table = Table("size", title=f"{title}\nHugging Face's model: {at_hub}", title_justify="left")
    for column in ("parameters", "layers", "width", "heads", "feed-forward"):
        table.add_column(column, justify="right")
    for size, row in numbers["sizes"].items():
        cells = (row[key] for key in ("parameters", "layers", "width", "heads", "ffn"))
        table.add_row(size, *(f"{cell:,}" for cell in cells))
    console = Console()
    console.print(table)
    if not with_layouts:
        return
    table = Table("config", title="layouts", title_justify="left")
    table.add_column("devices", justify="right")
    table.add_column("layout")
    for config, layouts in _layouts(family).items():
        for devices, layout in layouts.items():
            table.add_row(config, f"{devices:,}", layout_title(layout.model_dump()))
    if table.row_count:
        console.print(table)
