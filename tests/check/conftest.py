"""`megaptm check` in this process, on a small config."""

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
CONFIG_TOPICS = ("config", "processes", "memory", "data", "folder", "run", "time", "slurm", "tracker")
"""Topics that depend on the config. The others depend on the software of this machine and take seconds."""


@dataclass
class Bench:
    """Everything that a valid run needs, in a folder of its own, for a test to damage."""

    folder: Path
    real_corpus: Callable[[str], Path]
    other_corpus: Path
    """Corpus with another tokenizer."""

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def corpus(self) -> Path:
        """Return a copy of the corpus, to damage."""
        return shutil.copytree(self.real_corpus("byte-bpe"), self.folder / "corpus")

    def words(self, *more: str, corpus: Path | None = None) -> list[str]:
        config = arguments("gpt2", self.run, corpus or self.real_corpus("byte-bpe"), "optimizer.warmup_steps=2")
        return [*config, "train.steps=20", *more]

    def check(self, *words: str, topics: tuple[str, ...] = CONFIG_TOPICS) -> tuple[int, Findings]:
        """Return the exit code and the findings of `megaptm check WORDS`."""
        only = [word for topic in topics for word in ("--only", topic)]
        # Hide Slurm, which only some machines have; tests/real tests it.
        done = CliRunner().invoke(main, ["check", *words, *only, "--json"], env={"PATH": "/nonexistent"})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done.exit_code, json.loads(done.stdout)["findings"]


@pytest.fixture(scope="session")
def tales(tmp_path_factory):
    """Corpus with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("tales")
    return build(write_text(folder / "text"), folder / "tales", "bert")


@pytest.fixture
def bench(real_corpus, tales, tmp_path):
    return Bench(tmp_path, real_corpus, tales)


def messages(findings: Findings, *states: str) -> list[str]:
    """Return `topic: message` of the findings in these states."""
    return [f"{finding['topic']}: {finding['message']}" for finding in findings if finding["state"] in states]
