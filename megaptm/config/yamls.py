"""YAML as we read it: values with the line each key stands on, and none of YAML 1.1's surprises."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from megaptm.errors import UserError


class Loader(yaml.SafeLoader):
    """The safe loader, with the plain words of YAML 1.2: 1e-4 is a number; `no` and `on`, 1:30 (ninety, once) and
    2026-01-01 are strings. 010, eight then and ten now, is one too, so that no number can be misread."""


READ_ANEW = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "timestamp")}
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in READ_ANEW]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$"), list("tf"))
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^([-+]?(0|[1-9][\d_]*)|0o[0-7]+|0x[\da-fA-F]+)$"),
    list("-+0123456789"),
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?((\d[\d_]*)?\.\d+([eE][-+]?\d+)?|\d[\d_]*\.([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.inf|\.nan)$"),
    list("-+.0123456789"),
)


class Dumper(yaml.SafeDumper):
    """The safe dumper, which puts a string in quotes that any reader would take for something else, ours or another."""


Dumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *Loader.yaml_implicit_resolvers.get(first, ())]
    for first in yaml.SafeDumper.yaml_implicit_resolvers.keys() | Loader.yaml_implicit_resolvers.keys()
}


@dataclass(frozen=True)
class Layer:
    """Values from one place, and for each dotted key where it was written: `file:line`, or the override itself."""

    values: dict[str, Any]
    origins: dict[str, str]


def read_file(path: Path) -> Layer:
    """The mapping in one YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file; give the path of a YAML file.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; give the path of a YAML file.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8.") from None
    values, lines = _parse(text, where=str(path))
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: a config is a mapping of sections, not {type(values).__name__}.")
    return Layer(values, {key: f"{path}:{line}" for key, line in lines.items()})


def read_override(text: str) -> Layer:
    """The mapping that `a.b=value` stands for; the value is YAML."""
    key, equals, written = text.partition("=")
    key = key.strip()
    if not equals or not key or any(not part for part in key.split(".")):
        raise UserError(f"override {text!r}: write key=value, for instance train.steps=100.")
    value, _ = _parse(written, where=f"override {text!r}")
    origins = {}
    for part in reversed(key.split(".")):
        value = {part: value}
    parts = key.split(".")
    for depth in range(1, len(parts) + 1):
        origins[".".join(parts[:depth])] = f"override {text!r}"
    return Layer(value, origins)


def _parse(text: str, *, where: str) -> tuple[Any, dict[str, int]]:
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        lines: dict[str, int] = {}
        if node is None:
            return None, lines
        _note_lines(node, (), lines, where=where)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise UserError(f"{where}{line}: not valid YAML: {error.problem or error.context}.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{where}: not valid YAML: {' '.join(str(error).split())}.") from None
    finally:
        loader.dispose()


def _note_lines(node: yaml.Node, above: tuple[str, ...], lines: dict[str, int], *, where: str) -> None:
    """Write down the line of each key below `node`; a key written twice is an error, where YAML keeps the last."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        name = str(key.value)
        path = (*above, name)
        line = key.start_mark.line + 1
        if name in seen:
            raise UserError(f"{where}:{line}: {'.'.join(path)} is written twice; keep one.")
        seen.add(name)
        lines[".".join(path)] = line
        _note_lines(value, path, lines, where=where)
