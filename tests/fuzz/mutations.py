"""Mutations of files, as by a bad disk, a careless user or an attacker."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Random = random.Random
Path_ = tuple[Any, ...]

NUMBERS = [0, -1, 1, 2, 7, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30]
FLOATS = [0.5, -0.0, 1e-300, 1e308, float("inf"), float("-inf"), float("nan")]
NAMES = [
    "",
    ".",
    "..",
    "../escape",
    "../../../escape",
    "/tmp/megaptm-fuzz-escape",
    "a\\b",
    "a\0b",
    "x" * 5000,
    "~",
    "$HOME",
]
TEXTS = [
    "no",
    "1e5",
    "null",
    "\ud800",
    "é" * 300,
    "\u202e",
    "{}",
    "[red]",
    "%s%n",
    "https://x.invalid/a",
    "file:///etc/hosts",
]


def nested_list(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def random_value(rng: Random) -> Any:
    """Return a value of any type that is likely to cause an error."""
    kinds: list[Callable[[], Any]] = [
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice(FLOATS),
        lambda: rng.choice(NAMES),
        lambda: rng.choice(TEXTS),
        lambda: rng.choice([None, True, False]),
        lambda: rng.choice(
            [[], {}, [[]], {"": {}}, [None] * 300, list(range(2000)), nested_list(60), nested_list(300)]
        ),
    ]
    return rng.choice(kinds)()


def all_paths(value: Any, above: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of each value in a tree."""
    yield above
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield from all_paths(child, (*above, key))


def value_at(tree: Any, path: Path_) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def change_tree(tree: Any, rng: Random, *, times: int | None = None, under: Path_ = ()) -> Any:
    """Return a copy of a JSON or YAML tree with changed values, and with keys removed, duplicated or renamed."""
    tree = deepcopy(tree)
    for _ in range(times or rng.choice([1, 1, 1, 2, 3])):
        if isinstance(tree, dict | list) and tree:
            # In large trees (a vocabulary), rare parts are chosen as often as frequent ones.
            path = _random_path(tree, rng)
            _change_at(tree, path, rng)
        else:
            tree = random_value(rng)
    return tree


def _random_path(tree: Any, rng: Random) -> Path_:
    """Return a random path. Each level is equally likely."""
    path: list[Any] = []
    while isinstance(tree, dict | list) and tree and (not path or rng.random() < 0.75):
        key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        path.append(key)
        tree = tree[key]
    return tuple(path)


def _change_at(tree: Any, path: Path_, rng: Random) -> None:
    parent, key = value_at(tree, path[:-1]), path[-1]
    value = parent[key]
    ways: list[Callable[[], Any]] = [lambda: random_value(rng), lambda: random_value(rng)]
    if isinstance(value, bool | None):
        ways.append(lambda: not value)
    elif isinstance(value, int | float):
        ways += [
            lambda: -value,
            lambda: value + 1,
            lambda: value * 2**40,
            lambda: str(value),
            lambda: rng.choice(NUMBERS),
        ]
    elif isinstance(value, str):
        ways += [
            lambda: "../" * 6 + value,
            lambda: value[:-1],
            lambda: value * 50,
            lambda: rng.choice(NAMES),
            lambda: 7,
        ]
    elif isinstance(value, list):
        ways += [
            lambda: value[:-1],
            lambda: value * 2,
            lambda: value[::-1],
            lambda: dict(enumerate(value)),
            lambda: [value],
        ]
    elif isinstance(value, dict):
        ways += [lambda: list(value.items()), lambda: {**value, rng.choice(NAMES): random_value(rng)}, lambda: [value]]
    choice = rng.random()
    if choice < 0.1:
        del parent[key]
    elif choice < 0.2 and isinstance(parent, dict):
        parent[rng.choice([*NAMES, *TEXTS, *map(str, parent)])] = parent.pop(key)
    elif choice < 0.25 and isinstance(parent, dict):
        parent[rng.choice(NAMES)] = deepcopy(value)
    else:
        parent[key] = rng.choice(ways)()


def change_bytes(content: bytes, rng: Random) -> bytes:
    """Truncate, flip, cut, duplicate or overwrite bytes."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        size = len(changed)
        # The start, which has the headers, as often as the rest.
        start = rng.randrange(max(1, min(size, 600) if rng.random() < 0.5 else size))
        stop = min(size, start + rng.choice([1, 1, 2, 8, 64, 512, 4096]))
        way = rng.randrange(8)
        if way == 0:
            del changed[start:]
        elif way == 1:
            del changed[start:stop]
        elif way == 2:
            changed[start:start] = changed[start:stop]
        elif way == 3:
            changed[start:stop] = bytes([rng.choice([0, 0xFF, 0x20, 0x7F])]) * (stop - start)
        elif way == 4:
            changed[start:start] = rng.randbytes(stop - start)
        elif way == 5:
            changed += rng.randbytes(stop - start)
        else:
            for index in range(start, stop):
                changed[index] ^= 1 << rng.randrange(8)
    return bytes(changed)


def change_json(path: Path, rng: Random) -> None:
    """Change the values of a JSON file, or in a quarter of the cases its bytes."""
    content = path.read_bytes()
    if rng.random() < 0.25:
        path.write_bytes(change_bytes(content, rng))
    else:
        path.write_text(json.dumps(change_tree(json.loads(content), rng)))


def change_kind(folder: Path, rng: Random) -> None:
    """Remove a file in a folder, or replace it by a folder, a pipe, or a link: dangling, to itself, out of the folder,
    or to an endless device."""
    path = rng.choice(sorted(file for file in folder.rglob("*") if file.is_file()))
    content = path.read_bytes()
    path.unlink()
    way = rng.randrange(7)
    if way == 0:
        path.mkdir()
    elif way == 1:
        os.mkfifo(path)
    elif way < 6:
        outside = folder.with_name("outside")
        outside.write_bytes(content)
        path.symlink_to(["/nowhere/at/all", path.name, "/dev/zero", outside][way - 2])


YAML_TRICKS = [
    "model: &m {layers: *m}\n",
    "a: &a [x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\n" + "d: [" + "*c, " * 50 + "*c]\n",
    "<<: {run: x}\n",
    "? [1, 2]\n: 3\n",
    "!!binary aGk=: 1\n",
    "run: !!python/name:os.system\n",
    "--- 1\n--- 2\n",
    "%YAML 9.9\n---\nrun: x\n",
    "{" * 400,
    "- " * 400,
    "run: |\n" + "  x\n" * 3000,
    "run: !!set {a, b}\n",
    "run: !!omap [a: 1]\n",
]


def change_yaml(path: Path, rng: Random) -> None:
    """Change the values or bytes of a YAML file, or add unusual YAML."""
    content = path.read_bytes()
    way = rng.random()
    if way < 0.2:
        path.write_bytes(change_bytes(content, rng))
    elif way < 0.3:
        path.write_bytes(rng.choice(YAML_TRICKS).encode() + content)
    elif way < 0.35:
        path.write_bytes(content + rng.choice(YAML_TRICKS).encode())
    else:
        tree = change_tree(yaml.safe_load(content), rng)
        path.write_text(
            yaml.safe_dump(tree, allow_unicode=rng.random() < 0.5), encoding="utf-8", errors="surrogatepass"
        )


def change_file(path: Path, rng: Random) -> None:
    """Change the values of a JSON file, or the bytes of another."""
    if path.suffix == ".json":
        change_json(path, rng)
    else:
        path.write_bytes(change_bytes(path.read_bytes(), rng))
