"""YAML as we read it: values with the line each key stands on, and none of YAML 1.1's surprises."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from megaptm.credentials import in_brief, refuse_credentials, refuse_credentials_in_words
from megaptm.errors import UserError


class YamlLoader(yaml.SafeLoader):
    """The safe loader, with the plain words of YAML 1.2: 1e-4 is a number; `no` and `on`, 1:30 (ninety, once) and
    2026-01-01 are strings. 010, eight then and ten now, is one too, so that no number can be misread. A URL with a
    password in it is refused before anything else is said of the text."""

    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        self._where = where

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        refuse_credentials(node.value, where=f"{self._where}:{node.start_mark.line + 1}")
        return node


# `!!binary` is no word that can be looked at for secrets, and no config holds bytes.
YamlLoader.yaml_constructors = {
    tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items() if tag != "tag:yaml.org,2002:binary"
}
READ_ANEW = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "timestamp")}
YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in READ_ANEW]
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


MOST_BYTES = 1 << 20
"""Of a file; reading so many takes ten seconds."""
MOST_VALUES = 100_000
"""Of a file, where an alias counts as all that it stands for."""
DEEPEST = 32
"""Sections within sections."""
TOO_DEEP = f"sections within sections, more than {DEEPEST} deep; a config has a few."
# NUL, and halves of characters, which `"\ud800"` makes.
NO_TEXT = re.compile("[\x00\ud800-\udfff]")


class YamlDumper(yaml.SafeDumper):
    """The safe dumper, which puts a string in quotes that any reader would take for something else, ours or another."""


YamlDumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *YamlLoader.yaml_implicit_resolvers.get(first, ())]
    for first in yaml.SafeDumper.yaml_implicit_resolvers.keys() | YamlLoader.yaml_implicit_resolvers.keys()
}


@dataclass(frozen=True)
class ConfigLayer:
    """Values from one place, and for each dotted key where it was written: `file:line`, or the override itself."""

    values: dict[str, Any]
    origins: dict[str, str]
    key: tuple[str, ...] = ()
    """The one that it sets, of an override."""


def read_file(path: Path) -> ConfigLayer:
    """The mapping in one YAML file."""
    if os.path.isdir(path):  # not Path.is_dir, which raises where a name is too long
        raise UserError(f"{path} is a folder; give the path of a YAML file.")
    if not os.path.isfile(path):  # a pipe or a device would be waited for, or read without end
        raise UserError(f"{path}: no such config file; give the path of a YAML file, or a name such as gpt2/tiny.")
    if path.stat().st_size > MOST_BYTES:
        raise UserError(f"{path} has more than {MOST_BYTES:,} bytes; give the path of a YAML file.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8.") from None
    values, lines = _parse(text, where=str(path))
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: a config is a mapping of sections, not {type(values).__name__}.")
    return ConfigLayer(values, {key: f"{path}:{line}" for key, line in lines.items()})


def read_mapping(values: Mapping[str, Any], where: str) -> ConfigLayer:
    """A mapping of Python's, as if it had been read from a file; `where` begins what is said of a mistake."""
    parsed, lines = _parse(_as_yaml(values, where), where=where)
    return ConfigLayer(parsed, dict.fromkeys(lines, where))


def override_of(key: str, value: Any) -> str:
    """`a.b=value` as one would type it."""
    return f"{key}={_as_yaml(value, key)}"


def _as_yaml(value: Any, where: str) -> str:
    try:
        return json.dumps(value, default=os.fspath, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {in_brief(error)}: give what YAML can hold.") from None


def read_override(text: str) -> ConfigLayer:
    """The mapping that `a.b=value` stands for; the value is YAML."""
    refuse_credentials_in_words([text])
    key, equals, written = text.partition("=")
    key = key.strip()
    if not equals or not key or any(not part for part in key.split(".")):
        raise UserError(f"override {text!r}: write key=value, for instance train.steps=100.")
    try:
        value, _ = _parse(written, where=f"override {text!r}")
    except UserError as error:
        if not (written.startswith(("{", "[")) and text[-1] in ":,"):
            raise
        close = "}" if written[0] == "{" else "]"
        hint = f"the shell split it at a space; put it in quotes: '{text} ...{close}'."
        raise UserError(f"{str(error).removesuffix('.')}; {hint}") from None
    origins = {}
    for part in reversed(key.split(".")):
        value = {part: value}
    parts = key.split(".")
    for depth in range(1, len(parts) + 1):
        origins[".".join(parts[:depth])] = f"override {text!r}"
    return ConfigLayer(value, origins, tuple(parts))


def _parse(text: str, *, where: str) -> tuple[Any, dict[str, int]]:
    try:
        loader = YamlLoader(text, where)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines = _Lines(where)
        lines.note(node)
        return loader.construct_document(node), lines.found
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
        # The last of them come from `!!int`, `!!bool` ... before what is none, which PyYAML does not look at.
        raise UserError(f"{where}: not valid YAML: {in_brief(error)}.") from None


class _Lines:
    """The line of each key below a node. On its way it refuses what YAML allows and no config has: a key written twice,
    where YAML keeps the last; what contains itself; a few lines that stand for billions, through aliases of aliases;
    characters that no name and no path can have."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: dict[str, int] = {}
        self._seen = 0

    def note(self, node: yaml.Node, keys: tuple[str, ...] = (), inside: tuple[yaml.Node, ...] = ()) -> None:
        line = node.start_mark.line + 1
        self._seen += 1
        if self._seen > MOST_VALUES:
            raise UserError(f"{self.where}: its aliases stand for more than {MOST_VALUES:,} values; write them out.")
        if any(node is outer for outer in inside):
            raise UserError(f"{self.where}:{line}: {'.'.join(keys) or 'it'} contains itself; remove the alias.")
        if len(inside) > DEEPEST:
            raise UserError(f"{self.where}:{line}: {TOO_DEEP}")
        if isinstance(node, yaml.ScalarNode) and (bad := NO_TEXT.search(node.value)):
            raise UserError(
                f"{self.where}:{line}: {'.'.join(keys) or 'it'} has the character U+{ord(bad[0]):04X}, which no name "
                "can have; remove it."
            )
        if isinstance(node, yaml.SequenceNode):
            for value in node.value:
                self.note(value, keys, (*inside, node))
        if isinstance(node, yaml.MappingNode):
            self._note_keys(node, keys, inside)

    def _note_keys(self, node: yaml.MappingNode, keys: tuple[str, ...], inside: tuple[yaml.Node, ...]) -> None:
        seen = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"{self.where}:{line}: a key is a word, not a list or a mapping.")
            path = (*keys, key.value)
            self.note(key, path)
            if key.value in seen:
                raise UserError(f"{self.where}:{line}: {'.'.join(path)} is written twice; keep one.")
            seen.add(key.value)
            self.found[".".join(path)] = line
            self.note(value, path, (*inside, node))
