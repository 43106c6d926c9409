"""Diffs that a page shows, applied to a copy of the repository."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

PARTS = ("megaptm", "data_pipeline", "benchmarks", "tests", "configs", "slurm", "pyproject.toml")


@dataclass(frozen=True)
class Edit:
    """Replacement of lines in a file. Empty `before`: a new file."""

    path: str
    before: str
    after: str

    def apply(self, root: Path) -> None:
        """Replace the lines, which must occur exactly once. Line numbers are ignored."""
        file = root / self.path
        if not self.before:
            assert not file.exists(), f"the page adds {self.path}, which exists"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.after, encoding="utf-8")
            return
        text = file.read_text(encoding="utf-8")
        count = text.count(self.before)
        assert count == 1, (
            f"the page changes lines that occur {count} times in {self.path}; update the page:\n{self.before}"
        )
        file.write_text(text.replace(self.before, self.after), encoding="utf-8")


def edits(page: Path) -> Iterator[Edit]:
    """Yield the hunks of all ```diff blocks in order."""
    for block in re.findall(r"^```diff\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        path = re.search(r"^\+\+\+ b/(\S+)$", block, re.MULTILINE)
        assert path is not None, f"a block of {page.name} names no file:\n{block}"
        for hunk in re.split(r"^@@.*\n", block, flags=re.MULTILINE)[1:]:
            # An empty line is context: editors strip its trailing space.
            lines = [line or " " for line in hunk.splitlines()]
            yield Edit(
                path[1],
                before="".join(f"{line[1:]}\n" for line in lines if line[0] in " -"),
                after="".join(f"{line[1:]}\n" for line in lines if line[0] in " +"),
            )


def edited_copy(page: Path, folder: Path) -> Path:
    """Return `folder`, filled with a copy of the repository with the edits of the page."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            # Shipped configs are links.
            shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)
    for edit in edits(page):
        edit.apply(folder)
    return folder
