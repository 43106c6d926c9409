"""Ways to spoil a file: as a disk does, as a hurried hand does, and as an attacker does."""

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


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def anything(draw: Random) -> Any:
    """A value of any type, likely one that hurts."""
    kinds: list[Callable[[], Any]] = [
        lambda: draw.choice(NUMBERS),
        lambda: draw.choice(FLOATS),
        lambda: draw.choice(NAMES),
        lambda: draw.choice(TEXTS),
        lambda: draw.choice([None, True, False]),
        lambda: draw.choice([[], {}, [[]], {"": {}}, [None] * 300, list(range(2000)), deep(60), deep(300)]),
    ]
    return draw.choice(kinds)()


def places(value: Any, above: Path_ = ()) -> Iterator[Path_]:
    """The path of every value in a tree."""
    yield above
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield from places(child, (*above, key))


def at(tree: Any, path: Path_) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def change_tree(tree: Any, draw: Random, *, times: int | None = None, under: Path_ = ()) -> Any:
    """A copy of a tree (JSON, YAML) with some values of another type or size, keys gone, doubled or renamed."""
    tree = deepcopy(tree)
    for _ in range(times or draw.choice([1, 1, 1, 2, 3])):
        if isinstance(tree, dict | list) and tree:
            # Small trees wholly; of large ones (a vocabulary), the parts that are few as often as those that are many.
            path = _some_place(tree, draw)
            _change_at(tree, path, draw)
        else:
            tree = anything(draw)
    return tree


def _some_place(tree: Any, draw: Random) -> Path_:
    """Downwards from the root, so that each level is as likely as another."""
    path: list[Any] = []
    while isinstance(tree, dict | list) and tree and (not path or draw.random() < 0.75):
        key = draw.choice(list(tree)) if isinstance(tree, dict) else draw.randrange(len(tree))
        path.append(key)
        tree = tree[key]
    return tuple(path)


def _change_at(tree: Any, path: Path_, draw: Random) -> None:
    parent, key = at(tree, path[:-1]), path[-1]
    value = parent[key]
    ways: list[Callable[[], Any]] = [lambda: anything(draw), lambda: anything(draw)]
    if isinstance(value, bool | None):
        ways.append(lambda: not value)
    elif isinstance(value, int | float):
        ways += [
            lambda: -value,
            lambda: value + 1,
            lambda: value * 2**40,
            lambda: str(value),
            lambda: draw.choice(NUMBERS),
        ]
    elif isinstance(value, str):
        ways += [
            lambda: "../" * 6 + value,
            lambda: value[:-1],
            lambda: value * 50,
            lambda: draw.choice(NAMES),
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
        ways += [lambda: list(value.items()), lambda: {**value, draw.choice(NAMES): anything(draw)}, lambda: [value]]
    choice = draw.random()
    if choice < 0.1:
        del parent[key]
    elif choice < 0.2 and isinstance(parent, dict):
        parent[draw.choice([*NAMES, *TEXTS, *map(str, parent)])] = parent.pop(key)
    elif choice < 0.25 and isinstance(parent, dict):
        parent[draw.choice(NAMES)] = deepcopy(value)
    else:
        parent[key] = draw.choice(ways)()


def change_bytes(content: bytes, draw: Random) -> bytes:
    """Truncated, flipped, cut, doubled, overwritten."""
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 5])):
        size = len(changed)
        # The beginning, where headers are, as often as all the rest.
        start = draw.randrange(max(1, min(size, 600) if draw.random() < 0.5 else size))
        stop = min(size, start + draw.choice([1, 1, 2, 8, 64, 512, 4096]))
        way = draw.randrange(8)
        if way == 0:
            del changed[start:]
        elif way == 1:
            del changed[start:stop]
        elif way == 2:
            changed[start:start] = changed[start:stop]
        elif way == 3:
            changed[start:stop] = bytes([draw.choice([0, 0xFF, 0x20, 0x7F])]) * (stop - start)
        elif way == 4:
            changed[start:start] = draw.randbytes(stop - start)
        elif way == 5:
            changed += draw.randbytes(stop - start)
        else:
            for place in range(start, stop):
                changed[place] ^= 1 << draw.randrange(8)
    return bytes(changed)


def change_json(path: Path, draw: Random) -> None:
    """Of a JSON file its values, or (one time in four) its bytes."""
    content = path.read_bytes()
    if draw.random() < 0.25:
        path.write_bytes(change_bytes(content, draw))
    else:
        path.write_text(json.dumps(change_tree(json.loads(content), draw)))


def change_kind(folder: Path, draw: Random) -> None:
    """A file below a folder is gone, or a folder, a pipe, a link: to nowhere, to itself, out of the folder, to
    what has no end."""
    path = draw.choice(sorted(one for one in folder.rglob("*") if one.is_file()))
    content = path.read_bytes()
    path.unlink()
    way = draw.randrange(7)
    if way == 0:
        path.mkdir()
    elif way == 1:
        os.mkfifo(path)
    elif way < 6:
        outside = folder.with_name("outside")
        outside.write_bytes(content)
        path.symlink_to(["/nowhere/at/all", path.name, "/dev/zero", outside][way - 2])


TRICKS = [
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


def change_yaml(path: Path, draw: Random) -> None:
    """Of a YAML file its values, its bytes, or a trick of the language put before it."""
    content = path.read_bytes()
    way = draw.random()
    if way < 0.2:
        path.write_bytes(change_bytes(content, draw))
    elif way < 0.3:
        path.write_bytes(draw.choice(TRICKS).encode() + content)
    elif way < 0.35:
        path.write_bytes(content + draw.choice(TRICKS).encode())
    else:
        tree = change_tree(yaml.safe_load(content), draw)
        path.write_text(
            yaml.safe_dump(tree, allow_unicode=draw.random() < 0.5), encoding="utf-8", errors="surrogatepass"
        )


def change_file(path: Path, draw: Random) -> None:
    """Change its JSON where it is some, else its bytes."""
    if path.suffix == ".json":
        change_json(path, draw)
    else:
        path.write_bytes(change_bytes(path.read_bytes(), draw))
