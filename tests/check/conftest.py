"""`megaptm check` in this process, on a small config, and runs that were begun."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from tests.drills.program import arguments
from tests.train.runs import build, write_text

Findings = list[dict[str, Any]]
ELSEWHERE = ("config", "processes", "memory", "data", "folder", "run", "time", "slurm", "tracker")
"""Topics other than the software of this machine, which no config changes and which takes seconds to ask."""


@dataclass
class Bench:
    """A place of its own for a test: what a good run needs, to be spoiled."""

    place: Path
    real_corpus: Callable[[str], Path]
    other_corpus: Path
    """With another tokenizer."""

    @property
    def run(self) -> Path:
        return self.place / "run"

    def corpus(self) -> Path:
        """A copy to spoil."""
        return shutil.copytree(self.real_corpus("byte-bpe"), self.place / "corpus")

    def words(self, *more: str, corpus: Path | None = None) -> list[str]:
        config = arguments("gpt2", self.run, corpus or self.real_corpus("byte-bpe"), "optimizer.warmup_steps=2")
        return [*config, "train.steps=20", *more]

    def check(self, *words: str, topics: tuple[str, ...] = ELSEWHERE) -> tuple[int, Findings]:
        """The exit code and the findings of `megaptm check WORDS`."""
        only = [word for topic in topics for word in ("--only", topic)]
        # Without Slurm, which some machines have and others do not; tests of it are elsewhere.
        done = CliRunner().invoke(main, ["check", *words, *only, "--json"], env={"PATH": "/nonexistent"})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done.exit_code, json.loads(done.stdout)["findings"]


@pytest.fixture(scope="session")
def tales(tmp_path_factory):
    """A corpus with a tokenizer of its own."""
    place = tmp_path_factory.mktemp("tales")
    return build(write_text(place / "text"), place / "tales", "bert")


@pytest.fixture
def bench(real_corpus, tales, tmp_path):
    return Bench(tmp_path, real_corpus, tales)


def saying(findings: Findings, *states: str) -> list[str]:
    """`topic: sentence` of the findings in these states."""
    return [f"{one['topic']}: {one['says']}" for one in findings if one["state"] in states]
