"""Which files a source means: a file, a folder, a glob, or `python-library`, text that every machine has."""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from megaptm.errors import UserError

PYTHON_LIBRARY = "python-library"

PROSE = frozenset({".txt", ".text", ".md", ".markdown", ".rst"})
# fmt: off
CODE = frozenset({
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".js", ".ts", ".go", ".rs", ".rb", ".sh", ".pl",
    ".lua", ".r", ".jl", ".scala", ".kt", ".swift", ".cs", ".php", ".sql", ".html", ".css", ".tex", ".toml", ".ini",
    ".cfg", ".yaml", ".yml",
})
# fmt: on
JSON_LINES = frozenset({".jsonl", ".ndjson"})
KNOWN = PROSE | CODE | JSON_LINES

# Other people's packages and compiled caches.
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "node_modules"})


@dataclass(frozen=True)
class InputFile:
    """A file to read, and the name its documents carry, which does not depend on the machine."""

    path: str
    name: str
    size: int

    @property
    def suffix(self) -> str:
        return Path(self.path).suffix.lower()


def find_files(sources: Iterable[str]) -> list[InputFile]:
    """The files of all sources: sources as given, files within one by name."""
    files = [file for source in sources for file in sorted(_files_of(source), key=lambda file: file.name)]
    if not files:
        raise UserError(
            f"no text found in {', '.join(sources) or 'no source at all'}: name a file, or a folder or glob with files "
            f"such as {', '.join(sorted(PROSE | JSON_LINES))} or source code."
        )
    return files


def _files_of(source: str) -> Iterator[InputFile]:
    path = Path(source).expanduser()
    if source == PYTHON_LIBRARY and not path.exists():
        yield from _files_under(Path(sysconfig.get_path("stdlib")), PYTHON_LIBRARY)
    elif path.is_dir():
        yield from _files_under(path, path.resolve().name)
    elif path.is_file():
        yield _file(path, path.name)  # whoever names a file means it, whatever its suffix
    elif glob.has_magic(source):
        for match in glob.iglob(str(path), recursive=True):
            if os.path.isfile(match) and Path(match).suffix.lower() in KNOWN:
                yield _file(Path(match), match)
    else:
        raise UserError(f"source {source} does not exist: name a file, a folder, a glob, or `{PYTHON_LIBRARY}`.")


def _files_under(root: Path, name: str) -> Iterator[InputFile]:
    for folder, below, files in os.walk(root):
        below[:] = [inner for inner in below if inner not in SKIPPED_FOLDERS and not inner.startswith(".")]
        for file in files:
            path = Path(folder, file)
            if path.suffix.lower() in KNOWN and not file.startswith(".") and path.is_file():
                yield _file(path, f"{name}/{path.relative_to(root).as_posix()}")


def _file(path: Path, name: str) -> InputFile:
    return InputFile(str(path), name, path.stat().st_size)


def partition(files: Iterable[InputFile], size: int) -> list[tuple[InputFile, ...]]:
    """Consecutive files in parts of about `size` bytes: the same parts whoever works on them."""
    parts: list[list[InputFile]] = [[]]
    room = size
    for file in files:
        if parts[-1] and file.size > room:
            parts.append([])
            room = size
        parts[-1].append(file)
        room -= file.size
    return [tuple(part) for part in parts]
