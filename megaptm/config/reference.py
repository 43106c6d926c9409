"""Reference of all config keys, generated from the schema: name, type, default, meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megaptm.config.on_resume import RULE_MEANINGS, OnResume, resume_rule
from megaptm.config.schema import Config, DeviceLayout
from megaptm.errors import UserError, nearest_name_advice
from megaptm.suggest import equivalent_name

FILLED_IN = ("objective",)
"""Config keys without a default that may be omitted, because another key determines them."""
TYPES = {"integer": "integer", "number": "number", "string": "string", "boolean": "true or false", "null": "null"}
BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
}


@dataclass(frozen=True)
class ConfigKey:
    """Key of a config, with its documentation."""

    section: str
    """Section of the key: `train`, `train.ramp` ..., or empty for a top-level key."""
    name: str
    type: str
    default: str
    meaning: str

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def on_resume(self) -> OnResume:
        """Return the rule for changing the config key when a run is continued."""
        return resume_rule(self.path)


@dataclass(frozen=True)
class ConfigSection:
    """Section of a config, with its documentation."""

    name: str
    meaning: str
    keys: tuple[ConfigKey, ...]


def config_sections() -> list[ConfigSection]:
    """Return all sections of a config, top-level keys first."""
    top, *subsections = _list_sections(Config.model_json_schema(), "")
    device_keys, *_ = _list_sections(DeviceLayout.model_json_schema(), "")
    return [ConfigSection("", top.meaning, (*top.keys, *device_keys.keys)), *subsections]


def find_sections(name: str | None) -> list[ConfigSection]:
    """Find sections of a config: all; the sections of a name with their subsections; or keys or nested sections, by
    path, name, or another library's name (`learning_rate`)."""
    all_sections = config_sections()
    if name is None:
        return all_sections
    if matches := [
        candidate for candidate in all_sections if candidate.name == name or candidate.name.startswith(f"{name}.")
    ]:
        return matches
    keys = {key.path: (candidate, key) for candidate in all_sections for key in candidate.keys}
    if name in keys:
        section, key = keys[name]
        return [ConfigSection(section.name, section.meaning, (key,))]
    names = {name, equivalent_name(name)}
    matching_keys = {candidate: tuple(key for key in candidate.keys if key.name in names) for candidate in all_sections}
    if any(matching_keys.values()):
        return [
            ConfigSection(candidate.name, candidate.meaning, matching)
            for candidate, matching in matching_keys.items()
            if matching
        ]
    if nested := [candidate for candidate in all_sections if candidate.name.rpartition(".")[2] in names]:
        return nested
    known = [*(candidate.name for candidate in all_sections if candidate.name), *keys]
    sections = ", ".join(candidate.name for candidate in all_sections if candidate.name)
    raise UserError(
        f"a config has no section and no key {name}; {nearest_name_advice(name, known, f'sections are {sections}.')}"
    )


HEAD = """# Config keys

Generated from the schema (`megaptm/config/schema.py`) by `megaptm config keys --markdown`. `megaptm config keys train`
prints one section in the terminal, and `megaptm config show CONFIG` prints a config with all defaults.

A file can extend another file (`extends: ../defaults.yaml`) or a config that is installed with megaptm
(`extends: gpt2/tiny`); then it contains only the differences. Each key can be set on the command line
(`train.steps=100`). A key with the default *absent* has no value; `Default:` in its meaning tells what then applies.
`null` removes a value of an extended file.

The column `on resume` tells which values a run with a saved checkpoint can be continued with:

{rules}
"""


def config_keys_as_markdown(sections: list[ConfigSection]) -> str:
    """Return the reference of config keys as Markdown, a table for each section."""
    lines = [HEAD.format(rules="\n".join(f"- **{rule}**: {meaning}" for rule, meaning in RULE_MEANINGS.items()))]
    for section in sections:
        lines += [
            f"## {section.name or 'Top level'}",
            "",
            section.meaning,
            "",
            "| key | type | default | on resume | meaning |",
        ]
        lines.append("|---|---|---|---|---|")
        for key in section.keys:
            cells = (f"`{key.name}`", key.type, key.default, key.on_resume, key.meaning)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


def _list_sections(
    schema: dict[str, Any], name: str, definitions: dict[str, Any] | None = None
) -> Iterator[ConfigSection]:
    """Yield the config section of a pydantic JSON schema, then its subsections."""
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    keys, subsections = [], []
    for key, field in schema["properties"].items():
        path = f"{name}.{key}" if name else key
        for option in field.get("anyOf", [field]):
            if "$ref" in option:
                subsections.append((option["$ref"], path))
            elif "$ref" in _value_schema(option) and path != "layouts":  # the keys of `layouts` are those of `layout`
                subsections.append((_value_schema(option)["$ref"], f"{path}.NAME"))
        if "$ref" not in field:
            keys.append(_make_key(name, key, field, is_required=key in schema.get("required", ())))
    yield ConfigSection(name, _on_one_line(schema.get("description", "")), tuple(keys))
    for reference, path in subsections:
        yield from _list_sections(definitions[reference.rpartition("/")[2]], path, definitions)


def _value_schema(field: dict[str, Any]) -> dict[str, Any]:
    values = field.get("additionalProperties")
    return values if isinstance(values, dict) else {}


def _make_key(section: str, name: str, field: dict[str, Any], *, is_required: bool) -> ConfigKey:
    # A default of None is shown as "absent". `null` is shown as a type only if None is not the default.
    default = field.get("default")
    kinds = [option for option in field.get("anyOf", [field]) if option.get("type") != "null" or default is not None]
    if default is None:
        shown = "required" if is_required and name not in FILLED_IN else "absent"
    else:
        shown = default if isinstance(default, str) else json.dumps(default)
    return ConfigKey(
        section, name, " or ".join(map(_describe_type, kinds)), shown, _on_one_line(field.get("description", ""))
    )


def _describe_type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return "section"
    if "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        return ", ".join(value if isinstance(value, str) else json.dumps(value) for value in values)
    if field["type"] == "object":
        return f"mapping to {_describe_type(_value_schema(field))}" if _value_schema(field) else "mapping"
    if field["type"] == "array":
        items = field.get("prefixItems") or [field["items"]]
        return (
            f"list of {len(items)}: {_describe_type(items[0])}"
            if "prefixItems" in field
            else f"list of {_describe_type(items[0])}"
        )
    bounds = [form.format(_format_number(field[bound])) for bound, form in BOUNDS.items() if bound in field]
    return ", ".join([TYPES[field["type"]], *bounds])


def _format_number(bound: float) -> str:
    return f"{bound:,.0f}" if bound == int(bound) else f"{bound:g}"


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
