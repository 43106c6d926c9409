"""Config for machines of several sizes: `layouts` and `devices` determine `layout`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from megaptm.config.schema import Config, DeviceLayout, Layout
from megaptm.config.yamls import ConfigLayer
from megaptm.errors import UserError


def choose(values: Mapping[str, Any], levels: Sequence[Sequence[ConfigLayer]]) -> tuple[dict[str, Any], int | None]:
    """Return `values` with the layout for its number of devices, and that number if it determines the data ranks.

    If both `devices` and `layout.data` are set, the later one counts. `levels` are the files, and last the overrides.
    """
    offered = DeviceLayout.model_validate({key: values[key] for key in DeviceLayout.model_fields if key in values})
    rest = {key: value for key, value in values.items() if key not in DeviceLayout.model_fields}
    for number, row in offered.layouts.items():
        _check_row(number, row)
    devices = offered.devices or min(offered.layouts, default=None)
    layout = rest.get("layout", {})
    if devices is None or not isinstance(layout, dict):
        return rest, None
    named = _latest(levels, lambda one: "devices" in one)
    counted = _latest(levels, lambda one: "data" in (one.get("layout") or {}))
    given = {key: value for key, value in layout.items() if key != "data" or counted >= named}
    below = _row(offered.layouts, devices).model_dump(exclude_unset=True)
    return {**rest, "layout": {**below, **given}}, devices if named >= counted else None


def device_mismatch(config: Config, devices: int) -> Iterator[str]:
    """Yield an error if the layout cannot use this number of devices."""
    layout = config.layout
    if devices % (layout.tensor * layout.pipeline):
        yield (
            f"devices ({devices:,}) must be a multiple of layout.tensor x layout.pipeline ({layout.tensor} x "
            f"{layout.pipeline}); use another number, or change the layout."
        )
    elif "data" in layout.model_fields_set and layout.processes != devices:
        yield (
            f"devices ({devices:,}) are not the {layout.processes:,} of layout.data x layout.tensor x layout.pipeline "
            f"({layout.data} x {layout.tensor} x {layout.pipeline}); give one or the other."
        )


def with_all_devices(config: Config, devices: int) -> Config:
    """Return the config with as many data ranks as fill the devices."""
    data = devices // (config.layout.tensor * config.layout.pipeline)
    return config.model_copy(update={"layout": config.layout.model_copy(update={"data": data})})


def _row(layouts: Mapping[int, Layout], devices: int) -> Layout:
    """Return the layout with the largest number of devices that is available; the smallest if there are fewer
    devices."""
    if not layouts:
        return Layout()
    return layouts[max((number for number in layouts if number <= devices), default=min(layouts))]


def _check_row(number: int, row: Layout) -> None:
    if "data" in row.model_fields_set:
        raise UserError(f"layouts.{number}.data: data ranks follow from the number of devices; remove it.")
    if number % (row.tensor * row.pipeline):
        raise UserError(
            f"layouts.{number}: tensor x pipeline ({row.tensor} x {row.pipeline}) must divide the {number} devices."
        )


def _latest(levels: Sequence[Sequence[ConfigLayer]], gives: Callable[[dict[str, Any]], bool]) -> int:
    """Return the index of the last level for which `gives` is true; -1 without one."""
    return max((at for at, level in enumerate(levels) if any(gives(layer.values) for layer in level)), default=-1)
