"""Command `megaptm families`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from megaptm.commands.output import print_json
from megaptm.errors import UserError, nearest_name_advice

if TYPE_CHECKING:
    from megaptm.config import Layout
    from megaptm.spec import LayerlessFamily


def _complete_family(ctx: click.Context, param: click.Parameter, prefix: str) -> list[str]:
    from megaptm.families import FAMILIES

    return [name for name in FAMILIES if name.startswith(prefix)]


@click.command("families")
@click.argument("name", required=False, shell_complete=_complete_family)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def families_command(name: str | None, as_json: bool) -> None:
    """List the model families: sizes, parameters, objectives and the equivalent Hugging Face model.

    NAME selects one family and shows the layouts of its shipped configs. For a family of your own: package.module:NAME.

    \b
      megaptm families
      megaptm families gpt3
    """
    from megaptm.families import FAMILIES, find_family
    from megaptm.spec import LayerlessFamily

    if name is None:
        chosen = [*FAMILIES.values()]
    elif (family := find_family(name)) is not None:
        chosen = [family]
    else:
        raise UserError(
            f"unknown family {name}; {nearest_name_advice(name, FAMILIES, 'there are {}, or package.module:NAME.')}"
        )
    if as_json:
        print_json(
            {
                family.name: _layerless_json(family)
                if isinstance(family, LayerlessFamily)
                else {**_family_json(family), "layouts": _layouts_json(family)}
                for family in chosen
            }
        )
    else:
        for family in chosen:
            if isinstance(family, LayerlessFamily):
                _show_layerless(family)
            else:
                _print_family(family, with_layouts=name is not None)


def _layerless_json(family: LayerlessFamily) -> dict[str, Any]:
    from dataclasses import asdict

    sizes = {
        size: {"parameters": family.published(size).parameters, **asdict(table)} for size, table in family.sizes.items()
    }
    return {
        "paper": family.paper,
        "objectives": family.objectives,
        "tokenizer": family.tokenizer.kind,
        "specials": family.tokenizer.specials,
        "vocabulary": family.tokenizer.vocabulary,
        "sizes": sizes,
    }


def _show_layerless(family: LayerlessFamily) -> None:
    from rich.table import Table

    from megaptm.console import Console

    words, objectives = f"{family.tokenizer.vocabulary:,} words", ", ".join(family.objectives)
    title = f"{family.name}: {family.title}, {words}, {family.paper}; {objectives}"
    table = Table("size", title=title, title_justify="left")
    columns = ("parameters", *family.size_fields)
    for column in columns:
        table.add_column(column, justify="right")
    for size, row in _layerless_json(family)["sizes"].items():
        table.add_row(size, *(f"{cell:,}" if type(cell) is int else str(cell) for cell in map(row.get, columns)))
    Console().print(table)


def _family_json(family: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from megaptm.hub.counterparts import hugging_face_models
    from megaptm.objectives import build_objective
    from megaptm.plan.count import count_parameters
    from megaptm.spec import published_spec

    sizes = {
        size: {"parameters": count_parameters(published_spec(family, size)), **asdict(table)}
        for size, table in family.sizes.items()
    }
    return {
        "paper": family.paper,
        "stacks": {stack: asdict(block) | {"residual": block.residual.kind} for stack, block in family.stacks.items()},
        "objectives": family.objectives,
        "supervised": [name for name in family.objectives if build_objective(name).is_supervised],
        "hugging_face": hugging_face_models(family),
        "tokenizer": family.tokenizer.kind,
        "specials": family.tokenizer.specials,
        "vocabulary": family.tokenizer.vocabulary,
        "context": family.context,
        "sizes": sizes,
    }


def _layouts_json(family: Any) -> dict[str, dict[int, dict[str, Any]]]:
    return {
        config: {devices: layout.model_dump() for devices, layout in layouts.items()}
        for config, layouts in _shipped_layouts(family).items()
    }


def _shipped_layouts(family: Any) -> dict[str, dict[int, Layout]]:
    """Return the layouts of the family's shipped configs, by config and number of devices. Reads each file once."""
    from megaptm.config import UncheckedConfig
    from megaptm.config.shipped import CONFIGS
    from megaptm.families import FAMILIES

    name = family.name
    if FAMILIES.get(name) is not family:
        return {}
    layouts = {}
    for path in sorted((CONFIGS / name).glob("*.yaml"), key=lambda path: path.stem):
        config = UncheckedConfig.read(path)
        layouts[f"{name}/{path.stem}"] = {
            devices: config.with_override(f"devices={devices}").load().layout for devices in config.offered_devices
        }
    return layouts


def _print_family(family: Any, *, with_layouts: bool) -> None:
    from rich.table import Table

    from megaptm.console import Console
    from megaptm.report.terminal import layout_title

    facts = _family_json(family)
    supervised = dict.fromkeys(facts["supervised"], " (supervised)")
    objectives = ", ".join(f"{name}{supervised.get(name, '')}" for name in family.objectives)
    title = f"{family.name}: {' and '.join(family.stacks)}, {family.paper}; {objectives}"
    hf_models = " and ".join(facts["hugging_face"]) or "none"
    table = Table("size", title=f"{title}\nHugging Face model: {hf_models}", title_justify="left")
    for column in ("parameters", "layers", "width", "heads", "feed-forward"):
        table.add_column(column, justify="right")
    for size, row in facts["sizes"].items():
        cells = (row[key] for key in ("parameters", "layers", "width", "heads", "ffn"))
        table.add_row(size, *(f"{cell:,}" for cell in cells))
    console = Console()
    console.print(table)
    if not with_layouts:
        return
    table = Table("config", title="layouts", title_justify="left")
    table.add_column("devices", justify="right")
    table.add_column("layout")
    for config, layouts in _shipped_layouts(family).items():
        for devices, layout in layouts.items():
            table.add_row(config, f"{devices:,}", layout_title(layout.model_dump()))
    if table.row_count:
        console.print(table)
