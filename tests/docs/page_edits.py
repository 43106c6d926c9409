"""The diffs that a page shows, as edits that can be made to a copy of the tree."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

PARTS = ("megaptm", "data_pipeline", "benchmarks", "tests", "configs", "pyproject.toml")


@dataclass(frozen=True)
class Edit:
    """Some lines of a file and what stands in their place; without lines before, the file is new."""

    path: str
    before: str
    after: str

    def make(self, root: Path) -> None:
        """Line numbers are not looked at: the lines must be there exactly once, wherever that is."""
        file = root / self.path
        if not self.before:
            assert not file.exists(), f"the page adds {self.path}, which is there already"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.after, encoding="utf-8")
            return
        text = file.read_text(encoding="utf-8")
        found = text.count(self.before)
        assert found == 1, (
            f"the page changes lines that stand {found} times in {self.path}; show there what the file says now:\n"
            f"{self.before}"
        )
        file.write_text(text.replace(self.before, self.after), encoding="utf-8")


def edits(page: Path) -> Iterator[Edit]:
    """Every hunk of every ```diff block, in order."""
    for block in re.findall(r"^```diff\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        path = re.search(r"^\+\+\+ b/(\S+)$", block, re.MULTILINE)
        assert path is not None, f"a block of {page.name} names no file:\n{block}"
        for hunk in re.split(r"^@@.*\n", block, flags=re.MULTILINE)[1:]:
            # An empty line is an empty line of context: editors take the space off its end.
            lines = [line or " " for line in hunk.splitlines()]
            yield Edit(
                path[1],
                before="".join(f"{line[1:]}\n" for line in lines if line[0] in " -"),
                after="".join(f"{line[1:]}\n" for line in lines if line[0] in " +"),
            )


def edited_copy(page: Path, folder: Path) -> Path:
    """A copy of the tree in `folder` with all that the page shows."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)
    for edit in edits(page):
        edit.make(folder)
    return folder
