"""Read a config: its file, the files that it extends, and overrides; then validate and check it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from megaptm.config.changes import find_changes, with_trained_steps
from megaptm.config.check import config_errors, model_errors
from megaptm.config.device_layouts import device_errors, select_layout, with_all_devices, without_stale_stages
from megaptm.config.errors import error_messages
from megaptm.config.model import model_spec, with_resolved_model
from megaptm.config.phases import UNTIL, Phase, first_layers, phases_after, with_ramp_steps
from megaptm.config.schedule import with_initial_warmup, with_limited_warmup
from megaptm.config.schema import Config, DeviceLayout, Layout, ModelSection
from megaptm.config.sections.extensions import extension_sections, used_sections
from megaptm.config.shipped import find_config, find_shipped
from megaptm.config.stage_division import with_stage_division
from megaptm.config.yamls import ConfigLayer, YamlDumper, read_config_mapping, read_override, read_yaml_file
from megaptm.errors import UserError
from megaptm.plugins import NAMED_BY_RUNS, NAMED_BY_USER, named_modules
from megaptm.spec import ModelSpec

MAX_MESSAGES = 20
"""Maximum number of mistakes reported for one config."""
# Replaced as a unit instead of merged: a config with its own corpora or tasks does not want its parent's as well, and
# layouts belong to one model. An override of a key inside one changes only that key.
REPLACED_KEYS = frozenset(
    {"data.mix", "data.mix_ramp", "data.size_limits", "data.validation", "layouts", "objective", "optimizer.options"}
) | {f"{key}.{name}" for key, section in extension_sections().items() for name in section.replaced}
SHORTHANDS = {"checkpoint.keep": "last", "checkpoint.keep.best": "count"}
"""Section that may be a number -> the key that the number sets; the other keys keep their values."""
AUTO = "auto"
"""Value of `layout` in a config that requests the planner's layout."""
AUTO_PHASES = "layout (auto) is planned for each phase: leave `layout` out of phases, or set the layout of the run."
PYTHON_CONFIG = "the given config"
"""Text that stands for the path of a config in error messages if it was given as a Python mapping."""


@dataclass(frozen=True)
class Draft:
    """Config that may be invalid, and all of its errors."""

    config: Config | None
    """Config without unknown keys, which must not be run if it has mistakes; None if it is still invalid."""
    mistakes: tuple[str, ...]
    """Error message for every broken rule."""
    is_complete: bool = False
    """Whether the config has all model sizes, because it breaks no rule once its unknown keys are left out."""


@dataclass(frozen=True)
class UncheckedConfig:
    """Config as in files and overrides, before checks."""

    path: Path
    levels: tuple[tuple[ConfigLayer, ...], ...]
    """Values of each file of the config by itself, the most distant ancestor first; then those of all overrides
    together."""

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = ()) -> UncheckedConfig:
        """Read the config at `path`, or the shipped config of that name, and those that it extends; raise `UserError`
        for invalid YAML.

        The user wrote it, so modules that it names may be imported.
        """
        config_path = find_config(Path(path))
        return cls._of_layers(config_path, _read_with_parents(config_path, ()), overrides)

    @classmethod
    def read_run(cls, path: Path, overrides: Sequence[str] = ()) -> UncheckedConfig:
        """Read the config in a run folder, which is untrusted: a module that it names is imported only if the user
        allows it (`plugins.allow_code`)."""
        layers = _read_with_parents(path, ())
        NAMED_BY_RUNS.update(dict.fromkeys(named_modules([layer.values for layer in layers]), str(path)))
        return cls._of_layers(path, layers, overrides, written_by_user=False)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], overrides: Sequence[str] = ()) -> UncheckedConfig:
        """Read a config from a mapping instead of a file. Its `extends` is a path relative to the working directory, or
        a shipped config's name."""
        layer = read_config_mapping(values, PYTHON_CONFIG)
        parent = _pop_parent(layer, PYTHON_CONFIG)
        above = [] if parent is None else _read_with_parents(find_config(Path(parent)), ())
        return cls._of_layers(Path(PYTHON_CONFIG), (*above, layer), overrides)

    @classmethod
    def _of_layers(
        cls, path: Path, layers: Sequence[ConfigLayer], overrides: Sequence[str], *, written_by_user: bool = True
    ) -> UncheckedConfig:
        typed = tuple(read_override(text) for text in overrides)
        NAMED_BY_USER.update(named_modules([layer.values for layer in (*(layers if written_by_user else ()), *typed)]))
        return cls(path, (*((layer,) for layer in layers), typed))

    def with_override(self, override: str) -> UncheckedConfig:
        """Return this config with another override, after those that were typed."""
        *files, typed = self.levels
        return UncheckedConfig(self.path, (*files, (*typed, read_override(override))))

    @property
    def values(self) -> dict[str, Any]:
        """Return the values of the config after all files and overrides are merged."""
        values = _merge_layers({}, chain.from_iterable(self.levels))
        if first := first_layers(values):  # the config itself is the first phase
            until = {key: value for key, value in values["phases"][0].items() if key == UNTIL}
            values = {**_merge_layers(values, first), "phases": [until, *values["phases"][1:]]}
        return values

    @property
    def written_phases(self) -> list[dict[str, Any]]:
        """Return the phases as they are written: the values of the first one are also in `values`."""
        return _without_phase_layouts(_merge_layers({}, chain.from_iterable(self.levels))).get("phases", [])

    @property
    def offered_devices(self) -> list[int]:
        """Return the numbers of devices for which the config has a layout."""
        return sorted(self.values.get("layouts", {}))

    def sets_key(self, key: str) -> bool:
        """Whether any file or override of the config sets `key` (dotted)."""
        value: Any = self.values
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value is not None

    def draft(self) -> Draft:
        """Return the config with all of its mistakes, and those of its later phases."""
        draft = self._draft_phase(start=None)
        if draft.config is None or not draft.is_complete:  # each phase would have the same mistakes
            return draft
        if self.plans_layout and any(key.startswith("layout.") for entry in draft.config.phases for key in entry):
            return replace(draft, mistakes=(*draft.mistakes, AUTO_PHASES))
        later = (mistake for phase in _draft_phases(draft.config) for mistake in phase.mistakes)
        return replace(draft, mistakes=(*draft.mistakes, *later))

    def _draft_phase(self, *, start: int | None, processes: int | None = None) -> Draft:
        """Return the config of one phase with its mistakes. `start`: step at which it begins; None: as the config
        says. `processes`: number of those of the run."""
        values, origins = self.values, dict[str, str]()
        for layer in chain.from_iterable(self.levels):
            origins.update(layer.origins)
        for layer in first_layers({"phases": self.written_phases}):
            origins[".".join(layer.key)] = origins.get("phases", str(self.path))
        mistakes: list[str] = []
        try:
            config, devices = self._validate_values(values)
        except ValidationError as error:
            mistakes += error_messages(error, origins=origins, source=str(self.path))
            try:
                config, devices = self._validate_values(_without_unknown(values, error))
            except ValidationError:
                return Draft(None, tuple(mistakes))
        devices = devices or processes
        for section in used_sections(config):
            config = section.with_filled_values(config)
        config = with_ramp_steps(with_limited_warmup(config), config.train.phase_start if start is None else start)
        unfit = list(device_errors(config, devices)) if devices is not None else []
        if devices is not None and not unfit:
            config = with_all_devices(config, devices)
        if broken := [*config_errors(config), *unfit]:
            return Draft(config, (*mistakes, *broken))
        config = with_resolved_model(config)
        try:
            config = with_stage_division(config)
        except UserError as error:
            return Draft(config, (*mistakes, str(error)))
        for section in used_sections(config):
            config = section.with_resolved_sizes(config)
        return Draft(config, tuple(mistakes), is_complete=True)

    def _validate_values(self, values: dict[str, Any]) -> tuple[Config, int | None]:
        """Return the validated config, and the number of devices that determines its data ranks, if any."""
        devices = None
        if self.plans_layout:
            DeviceLayout.model_validate({key: values[key] for key in DeviceLayout.model_fields if key in values})
            values = {key: value for key, value in values.items() if key not in (*DeviceLayout.model_fields, "layout")}
            return Config.model_validate(_without_phase_layouts(values)), None
        values = self._with_phase_layouts(values)
        if not DeviceLayout.model_fields.keys().isdisjoint(values):
            values, devices = select_layout(values, self.levels)
        return Config.model_validate(without_stale_stages(values, self.levels)), devices

    def _with_phase_layouts(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with the layout of each later phase in place of its `layouts`. The number of data ranks
        follows from that of devices."""
        phases = values.get("phases")
        if not isinstance(phases, list) or not any(isinstance(phase, dict) and "layouts" in phase for phase in phases):
            return values
        merged, written = values, []
        for phase in phases:
            layers = first_layers({"phases": [phase]})
            merged = _merge_layers(merged, layers)
            if "layouts" in phase:
                chosen = select_layout(merged, (*self.levels, layers))[0].get("layout", {})
                layout = Layout.model_validate(chosen).model_dump(exclude={"data"})
                phase = {key: value for key, value in phase.items() if key != "layouts"} | {"layout": layout}
            written.append(phase)
        return {**values, "phases": written}

    @property
    def plans_layout(self) -> bool:
        """Whether `layout` is `auto`: see `plan.auto.plan_layout`."""
        return bool(self.values.get("layout") == AUTO)

    def load(self) -> Config:
        """Return the checked config with all model sizes filled in. Mistakes, and a layout that is still to be planned,
        raise `UserError`."""
        config = self.load_without_plan()
        if self.plans_layout:
            raise UserError(
                f"{self.path}: layout (auto) is chosen by `megaptm train`, `launch`, `check` and `plan`; set a layout."
            )
        return config

    def load_without_plan(self) -> Config:
        """Load the config; a layout that is still to be planned has one process."""
        draft = self.draft()
        if draft.config is None or draft.mistakes:
            raise _joined_error(draft.mistakes)
        return draft.config


def _without_phase_layouts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config without the `layouts` of its phases, which `layout: auto` ignores."""
    phases = values.get("phases")
    if not isinstance(phases, list):
        return dict(values)
    without_layouts = [
        {key: phase[key] for key in phase if key != "layouts"} if isinstance(phase, dict) else phase for phase in phases
    ]
    return {**values, "phases": without_layouts}


def enter_phase(config: Config, phase: Phase) -> Draft:
    """Return the config of a phase: the run's config with the changes of the phase, as if typed at its first step."""
    values = _written_values(config, config.model_dump(mode="json"))
    if "layout.data" not in phase.changes:
        del values["layout"]["data"]
    written = UncheckedConfig(Path(phase.title), ((ConfigLayer(values, {}),), phase.layers))
    draft = written._draft_phase(start=phase.start, processes=config.layout.processes)
    mistakes = tuple(f"{phase.title}: {mistake.removeprefix(f'{phase.title}: ')}" for mistake in draft.mistakes)
    if draft.config is None or not draft.is_complete:
        return replace(draft, mistakes=mistakes)
    entered = draft.config
    if entered.optimizer.max_warmup_ratio is not None:
        entered = with_initial_warmup(entered, config)
    entered = with_trained_steps(config, entered, phase.start, accepts=True)
    entered = entered.model_copy(update={"train": entered.train.model_copy(update={"phase_start": phase.start})})
    fixed = tuple(
        f"{phase.title}: {change.key} is {change.now}, was {change.before}, and cannot change{change.note}: remove it "
        "there, or set it for the whole run."
        for change in find_changes(config, entered, phase.start)
        if not change.may_change
    )
    return Draft(entered, (*mistakes, *fixed), is_complete=not fixed)


def _draft_phases(config: Config) -> Iterator[Draft]:
    """Yield the config of each later phase of a run. The values of a phase that breaks a rule are not passed on to the
    phases after it, which would break the same rule."""
    for phase in phases_after(config, config.train.phase_start):
        draft = enter_phase(config, phase)
        yield draft
        if draft.config is not None and draft.is_complete:
            config = draft.config


def phase_configs(config: Config) -> list[Config]:
    """Return the config of the present phase of a run, and of each later one."""
    return [config, *(draft.config for draft in _draft_phases(config) if draft.config is not None)]


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Load the config at `path`, or the shipped one of that name, with overrides `a.b=value`, checked and with all
    model sizes filled in.

    Raises `UserError` with a message for each mistake.
    """
    return UncheckedConfig.read(path, overrides).load()


def load_run_config(path: Path) -> Config:
    """Load the config in an untrusted run folder, as `UncheckedConfig.read_run` reads it."""
    return UncheckedConfig.read_run(path).load()


def read_config_draft(path: str | Path, overrides: Sequence[str] = ()) -> Draft:
    """Read the config at `path` and return its mistakes. Raises `UserError` only for invalid YAML."""
    return UncheckedConfig.read(path, overrides).draft()


def read_model_spec(values: Mapping[str, Any], where: str) -> ModelSpec:
    """Return the checked model of a config's section `model`. Error messages start with `where`."""
    try:
        model = ModelSection.model_validate({"model": read_config_mapping(values, where).values}).model
    except ValidationError as error:
        raise _joined_error(error_messages(error, origins={}, source=where)) from None
    if mistakes := [*model_errors(model)]:
        raise _joined_error(mistakes)
    return model_spec(model)


def _joined_error(mistakes: Sequence[str]) -> UserError:
    """Return an error with all mistakes of a config, one per line, so that they can be fixed together."""
    if len(mistakes) == 1:
        return UserError(mistakes[0])
    more = [f"and {len(mistakes) - MAX_MESSAGES:,} more."] if len(mistakes) > MAX_MESSAGES else []
    return UserError(f"{len(mistakes):,} mistakes in the config:", *mistakes[:MAX_MESSAGES], *more)


def _without_unknown(values: dict[str, Any], error: ValidationError) -> dict[str, Any]:
    """Return the values of a config without the keys that are not in the schema."""
    known = deepcopy(values)
    for details in error.errors():
        if details["type"] == "extra_forbidden":
            *above, key = details["loc"]
            section: Any = known
            for step in above:
                section = section[step]
            del section[key]
    return known


def config_to_yaml(config: Config) -> str:
    """Return the config as YAML, from which `load_config` gives an equal config."""
    content = _written_values(config, config.model_dump(mode="json"))
    return yaml.dump(content, Dumper=YamlDumper, sort_keys=False, allow_unicode=True)


def _written_values(section: BaseModel, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config's section as they are written to YAML. Absent values are omitted, unless null
    differs from the default."""
    values_to_write: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(own := getattr(section, name), BaseModel):
            values_to_write[name] = _written_values(own, value)
        elif isinstance(own, dict):
            values_to_write[name] = {
                key: _written_values(own[key], item) if isinstance(own.get(key), BaseModel) else item
                for key, item in value.items()
            }
        elif value is not None or type(section).model_fields[name].default is not None:
            values_to_write[name] = value
    return values_to_write


def _read_with_parents(path: Path, above: tuple[Path, ...]) -> list[ConfigLayer]:
    """Return the files that a config consists of, the most distant ancestor first."""
    here = Path(os.path.realpath(path))  # `Path.resolve` raises for circular links, which `read_yaml_file` reports
    if here in above:
        circle = " -> ".join(str(step) for step in (*above, here))
        raise UserError(f"{path} extends itself: {circle}; remove one `extends`.")
    layer = read_yaml_file(path)
    parent = _pop_parent(layer, str(path))
    if parent is None:
        return [layer]
    beside = path.parent / parent
    return [
        *_read_with_parents(beside if os.path.exists(beside) else find_shipped(beside, parent), (*above, here)),
        layer,
    ]


def _pop_parent(layer: ConfigLayer, where: str) -> str | None:
    """Remove and return the key `extends` of a config's file."""
    if "extends" not in layer.values:
        return None
    parent = layer.values.pop("extends")
    if not isinstance(parent, str):
        raise UserError(f"{layer.origins.get('extends', where)}: extends takes one path, not {parent!r}.")
    return parent


def _merge_layers(values: dict[str, Any], layers: Iterable[ConfigLayer]) -> dict[str, Any]:
    for layer in layers:
        values = _merge_values(values, layer.values, key=layer.key)
    return values


def _merge_values(base: Any, change: Any, above: tuple[str, ...] = (), *, key: tuple[str, ...] = ()) -> Any:
    """Merge the values `change` into the config `base`, section by section; `key` is the key that an override sets."""
    if (name := SHORTHANDS.get(".".join(above))) is not None:
        base, change = ({name: value} if isinstance(value, int) else value for value in (base, change))
    replaces = any(".".join(above[:depth]) in REPLACED_KEYS for depth in range(1, len(above) + 1)) and len(
        above
    ) >= len(key)
    if not isinstance(base, dict) or not isinstance(change, dict) or replaces:
        return change
    below = {name: _merge_values(base.get(name), value, (*above, str(name)), key=key) for name, value in change.items()}
    return {**base, **below}
