"""Config for machines of several sizes: `layouts` and `devices` determine `layout`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from megaptm.config.schema import Config, DeviceLayout, Layout
from megaptm.config.yamls import ConfigLayer
from megaptm.errors import UserError


def select_layout(
    values: Mapping[str, Any], levels: Sequence[Sequence[ConfigLayer]]
) -> tuple[dict[str, Any], int | None]:
    """Select the layout of a config for its number of devices: return `values` with it, and that number if it
    determines the data ranks.

    If both `devices` and `layout.data` are set, the later one counts. `levels` are the files, and last the overrides.
    """
    offered = DeviceLayout.model_validate({key: values[key] for key in DeviceLayout.model_fields if key in values})
    without_devices = {key: value for key, value in values.items() if key not in DeviceLayout.model_fields}
    for num_devices, candidate in offered.layouts.items():
        _check_row(num_devices, candidate)
    devices = offered.devices or min(offered.layouts, default=None)
    layout = without_devices.get("layout", {})
    if devices is None or not isinstance(layout, dict):
        return without_devices, None
    devices_level = _index_of_latest(levels, lambda layer: "devices" in layer)
    data_level = _index_of_latest(levels, lambda layer: "data" in (layer.get("layout") or {}))
    explicit = {key: value for key, value in layout.items() if key != "data" or data_level >= devices_level}
    defaults = _layout_for(offered.layouts, devices).model_dump(exclude_unset=True)
    return {**without_devices, "layout": {**defaults, **explicit}}, devices if devices_level >= data_level else None


def without_stale_stages(values: Mapping[str, Any], levels: Sequence[Sequence[ConfigLayer]]) -> dict[str, Any]:
    """Return `values` without a list in `layout.layers_per_stage` that a file or override sets before a later one
    changes the number of stages."""
    layout = values.get("layout")
    cut = layout.get("layers_per_stage") if isinstance(layout, dict) else None
    if not isinstance(layout, dict) or not isinstance(cut, (list, tuple)):
        return {**values}

    def sets_layout_key(layer: dict[str, Any], *keys: str) -> bool:
        own = layer.get("layout")
        return isinstance(own, dict) and not own.keys().isdisjoint(keys)

    stages_level = _index_of_latest(levels, lambda layer: sets_layout_key(layer, "pipeline", "virtual"))
    cut_level = _index_of_latest(levels, lambda layer: sets_layout_key(layer, "layers_per_stage") or "layouts" in layer)
    counts = [layout.get(key, 1) for key in ("pipeline", "virtual")]
    if not all(isinstance(count, int) for count in counts):  # reported by the validation
        return {**values}
    if stages_level <= cut_level or counts[0] * counts[1] == len(cut):
        return {**values}
    return {**values, "layout": {key: value for key, value in layout.items() if key != "layers_per_stage"}}


def device_errors(config: Config, devices: int) -> Iterator[str]:
    """Yield an error if the layout cannot use this number of devices."""
    layout = config.layout
    if devices % layout.model_ranks:
        yield (
            f"devices ({devices:,}) must be a multiple of {_format_axes(layout, 'tensor', 'pipeline')}; use another "
            "number, or change the layout."
        )
    elif "data" in layout.model_fields_set and layout.processes != devices:
        yield (
            f"devices ({devices:,}) must be {_format_axes(layout, 'data', 'tensor', 'pipeline')}; set only one of them."
        )


def _format_axes(layout: Layout, *names: str, prefix: str = "layout.") -> str:
    """Return the names and sizes of axes of a layout as text, with the context axis if it has several ranks."""
    axes = {name: getattr(layout, name) for name in (*names, *(("context",) if layout.context > 1 else ()))}
    return f"{' x '.join(prefix + name for name in axes)} ({' x '.join(map(str, axes.values()))})"


def with_all_devices(config: Config, devices: int) -> Config:
    """Return the config with as many data ranks as fill the devices."""
    data = devices // config.layout.model_ranks
    return config.model_copy(update={"layout": config.layout.model_copy(update={"data": data})})


def _layout_for(layouts: Mapping[int, Layout], devices: int) -> Layout:
    """Return the layout of a config for the largest number of devices that is available; the smallest if there are
    fewer devices."""
    if not layouts:
        return Layout()
    return layouts[max((number for number in layouts if number <= devices), default=min(layouts))]


def _check_row(num_devices: int, layout: Layout) -> None:
    if "data" in layout.model_fields_set:
        raise UserError(
            f"layouts.{num_devices}.data: the number of data ranks follows from the number of devices; remove it."
        )
    if num_devices % layout.model_ranks:
        axes = _format_axes(layout, "tensor", "pipeline", prefix="")
        raise UserError(f"layouts.{num_devices}: {axes} must divide the {num_devices} devices.")


def _index_of_latest(levels: Sequence[Sequence[ConfigLayer]], is_set: Callable[[dict[str, Any]], bool]) -> int:
    """Return the index of the last level of the config for which `is_set` is true; -1 without one."""
    return max(
        (index for index, level in enumerate(levels) if any(is_set(layer.values) for layer in level)), default=-1
    )
