"""Real text for tests: parts of Python's standard library, built into a corpus."""

from __future__ import annotations

import fcntl
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

# Modules, and tables of characters, which look so different that a model can tell whether two texts belong together.
SOURCES = ("*.py", "encodings/*.py")
VOCABULARIES = {"byte-bpe": 512, "wordpiece": 320, "unigram": 400}
"""Vocabulary size by kind of tokenizer: small, so that a tiny model learns its words in some hundred steps."""


@pytest.fixture(scope="session")
def real_corpus(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return kind of tokenizer -> corpus folder: 1.5 MB of text, a tenth held out.

    It is built on first use, once for all processes of the tests. Tests that change a corpus copy it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # each worker has a folder in the common one

    def corpus(kind: str) -> Path:
        out = folder / "real-text" / kind
        with (folder / f"real-text-{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (out / "manifest.json").exists():
                build(kind, out)
        return out

    return corpus


def build(kind: str, out: Path) -> None:
    from data_pipeline import commands

    library = Path(sysconfig.get_path("stdlib"))
    commands.run_build_command(
        [
            *(str(library / source) for source in SOURCES),
            *(f"out={out}", "workers=0", "validation=0.1", "limit_bytes=1500000"),
            *(f"tokenizer.kind={kind}", f"tokenizer.vocabulary={VOCABULARIES[kind]}"),
        ],
        console=Console(quiet=True),
    )
