"""YAML reader: values with their line numbers, and without the surprises of YAML 1.1."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from megaptm.credentials import brief_message, refuse_credentials, refuse_credentials_in_words
from megaptm.errors import UserError


class YamlLoader(yaml.SafeLoader):
    """YAML loader of configs, with the plain scalars of YAML 1.2: 1e-4 is a number; `no`, `on`, 1:30 and 2026-01-01 are
    strings.

    010 is a string, too, because it is 8 in YAML 1.1 and 10 in 1.2. A URL with a password is rejected before any other
    error could print it.
    """

    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        self._where = where

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        refuse_credentials(node.value, where=f"{self._where}:{node.start_mark.line + 1}")
        return node


# `!!binary` could hide a secret from this check, and no config needs bytes.
YamlLoader.yaml_constructors = {
    tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items() if tag != "tag:yaml.org,2002:binary"
}
REPLACED_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "timestamp")}
YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in REPLACED_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
YamlLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$"), list("tf"))
YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^([-+]?(0|[1-9][\d_]*)|0o[0-7]+|0x[\da-fA-F]+)$"),
    list("-+0123456789"),
)
YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?((\d[\d_]*)?\.\d+([eE][-+]?\d+)?|\d[\d_]*\.([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.inf|\.nan)$"),
    list("-+.0123456789"),
)


MAX_BYTES = 1 << 20
"""Maximum bytes of a YAML file; reading this many takes ten seconds."""
MAX_VALUES = 100_000
"""Maximum number of values in a YAML file. An alias counts as all values that it expands to."""
MAX_DEPTH = 32
"""Maximum depth of nested sections in a YAML file."""
TOO_DEEP = f"sections are nested more than {MAX_DEPTH} deep; a config has a few levels."
# NUL, and surrogates, which `"\ud800"` creates.
INVALID_CHARACTER = re.compile("[\x00\ud800-\udfff]")


class YamlDumper(yaml.SafeDumper):
    """YAML dumper of configs, which quotes any string that our loader or another would read as something else."""


YamlDumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *YamlLoader.yaml_implicit_resolvers.get(first, ())]
    for first in yaml.SafeDumper.yaml_implicit_resolvers.keys() | YamlLoader.yaml_implicit_resolvers.keys()
}


@dataclass(frozen=True)
class ConfigLayer:
    """Values of a config from one file or override, and the location of each dotted key: `file:line`, or the
    override."""

    values: dict[str, Any]
    origins: dict[str, str]
    key: tuple[str, ...] = ()
    """Dotted key that an override sets."""


def read_yaml_file(path: Path) -> ConfigLayer:
    """Read the mapping in one YAML file of a config."""
    if os.path.isdir(path):  # not Path.is_dir, which raises if a name is too long
        raise UserError(f"{path} is a folder; give the path of a YAML file.")
    if not os.path.isfile(path):  # a pipe would block, and a device may have no end
        raise UserError(f"{path}: no such config file; give the path of a YAML file, or a name such as gpt2/tiny.")
    if path.stat().st_size > MAX_BYTES:
        raise UserError(f"{path} has more than {MAX_BYTES:,} bytes; give the path of a YAML file.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8.") from None
    values, lines = _parse_yaml(text, where=str(path))
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: a config is a mapping of sections, not {type(values).__name__}.")
    return ConfigLayer(values, {key: f"{path}:{line}" for key, line in lines.items()})


def read_config_mapping(values: Mapping[str, Any], where: str) -> ConfigLayer:
    """Convert a Python mapping as if it were read from a YAML file. Error messages start with `where`."""
    parsed, lines = _parse_yaml(_to_yaml(values, where), where=where)
    return ConfigLayer(parsed, dict.fromkeys(lines, where))


def flatten_keys(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten the nested tables of a config: `{"train": {"steps": 3}}` -> `{"train.steps": 3}`."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        # Names of corpora and callbacks contain dots, and an objective is compared as a unit: none is flattened.
        if isinstance(value, dict) and key not in ("mix", "initial", "objective", "callbacks"):
            leaves |= flatten_keys(value, f"{above}{key}.")
        else:
            leaves[f"{above}{key}"] = value
    return leaves


def is_phase_key(key: object) -> bool:
    """Whether a key may be one of a phase: words and dots. Names of code are values, which a received run must be
    allowed to name."""
    return isinstance(key, str) and re.fullmatch(r"\w+(\.\w+)*", key) is not None


def with_dotted_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of config sections by dotted key: `{"train": {"steps": 3}}` -> `{"train.steps": 3}`."""
    keys: dict[str, Any] = {}
    for name, value in values.items():
        is_section = isinstance(value, dict) and "." not in name and name not in ("objective", "layouts")
        keys |= {f"{name}.{key}": entry for key, entry in value.items()} if is_section else {name: value}
    return keys


def format_override(key: str, value: Any) -> str:
    """Return an override of a config as typed: `a.b=value`."""
    return f"{key}={_to_yaml(value, key)}"


def _to_yaml(value: Any, where: str) -> str:
    try:
        return json.dumps(value, default=os.fspath, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {brief_message(error)}: use values that YAML can represent.") from None


def read_override(text: str) -> ConfigLayer:
    """Parse an override of a config, `a.b=value`, to a mapping; the value is YAML."""
    refuse_credentials_in_words([text])
    key, equals, written = text.partition("=")
    key = key.strip()
    if not equals or not key or any(not part for part in key.split(".")):
        raise UserError(f"override {text!r}: write key=value, for instance train.steps=100.")
    try:
        value, _ = _parse_yaml(written, where=f"override {text!r}")
    except UserError as error:
        if not (written.startswith(("{", "[")) and text[-1] in ":,"):
            raise
        close = "}" if written[0] == "{" else "]"
        hint = f"the shell split it at a space; put it in quotes: '{text} ...{close}'."
        raise UserError(f"{str(error).removesuffix('.')}; {hint}") from None
    return layer_of_key(key, value, where=f"override {text!r}")


def layer_of_key(key: str, value: Any, *, where: str) -> ConfigLayer:
    """Return a layer of a config that sets one dotted key. Error messages start with `where`."""
    parts = key.split(".")
    for part in reversed(parts):
        value = {part: value}
    origins = {".".join(parts[:depth]): where for depth in range(1, len(parts) + 1)}
    return ConfigLayer(value, origins, tuple(parts))


def _parse_yaml(text: str, *, where: str) -> tuple[Any, dict[str, int]]:
    """Return the values of a YAML text, and the line of each dotted key. Error messages start with `where`."""
    values, lines = _parse_yaml_once(text, where)
    return deepcopy(values), lines


@lru_cache(maxsize=64)
def _parse_yaml_once(text: str, where: str) -> tuple[Any, dict[str, int]]:
    """Parse a YAML text. Most of the time to read a config would be spent on parsing configs/defaults.yaml again."""
    try:
        loader = YamlLoader(text, where)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines = _KeyLineCollector(where)
        lines.note(node)
        return loader.construct_document(node), lines.lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        if "'\\t'" in (error.problem or ""):
            raise UserError(f"{where}{line}: not valid YAML: a tab; indent with spaces.") from None
        raise UserError(f"{where}{line}: not valid YAML: {error.problem or error.context}.") from None
    except RecursionError:
        raise UserError(f"{where}: {TOO_DEEP}") from None
    except UserError:
        raise
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        # Some come from `!!int`, `!!bool` ... before an invalid value, which PyYAML does not check.
        raise UserError(f"{where}: not valid YAML: {brief_message(error)}.") from None


class _KeyLineCollector:
    """Collector of the line of each key below a YAML node, which rejects valid YAML that is a mistake in a config.

    Rejected are duplicate keys (YAML keeps the last of them); recursive values; few lines that expand to billions of
    values through aliases; characters that no name or path can contain.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.lines: dict[str, int] = {}
        self._num_values = 0

    def note(self, node: yaml.Node, keys: tuple[str, ...] = (), inside: tuple[yaml.Node, ...] = ()) -> None:
        line = node.start_mark.line + 1
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise UserError(f"{self.where}: its aliases expand to more than {MAX_VALUES:,} values; write them out.")
        if any(node is outer for outer in inside):
            raise UserError(f"{self.where}:{line}: {'.'.join(keys) or 'it'} contains itself; remove the alias.")
        if len(inside) > MAX_DEPTH:
            raise UserError(f"{self.where}:{line}: {TOO_DEEP}")
        if isinstance(node, yaml.ScalarNode) and (match := INVALID_CHARACTER.search(node.value)):
            raise UserError(
                f"{self.where}:{line}: {'.'.join(keys) or 'it'} has the character U+{ord(match[0]):04X}, which is not "
                "allowed; remove it."
            )
        if isinstance(node, yaml.SequenceNode):
            for value in node.value:
                self.note(value, keys, (*inside, node))
        if isinstance(node, yaml.MappingNode):
            self._note_keys(node, keys, inside)

    def _note_keys(self, node: yaml.MappingNode, keys: tuple[str, ...], inside: tuple[yaml.Node, ...]) -> None:
        names = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"{self.where}:{line}: a key must be a string, not a list or a mapping.")
            path = (*keys, key.value)
            self.note(key, path)
            if key.value in names:
                raise UserError(f"{self.where}:{line}: {'.'.join(path)} is set twice; keep one.")
            names.add(key.value)
            self.lines[".".join(path)] = line
            self.note(value, path, (*inside, node))
