"""Real text for tests: parts of Python's standard library, built into a corpus."""

from __future__ import annotations

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
    """Return kind of tokenizer -> corpus folder, built on first use: 1.5 MB of text, a tenth held out."""
    folders: dict[str, Path] = {}

    def corpus(kind: str) -> Path:
        if kind not in folders:
            from data_pipeline import commands

            library = Path(sysconfig.get_path("stdlib"))
            folders[kind] = tmp_path_factory.mktemp("real-text") / kind
            commands.build(
                [
                    *(str(library / source) for source in SOURCES),
                    *(f"out={folders[kind]}", "workers=0", "validation=0.1", "limit_bytes=1500000"),
                    *(f"tokenizer.kind={kind}", f"tokenizer.vocabulary={VOCABULARIES[kind]}"),
                ],
                console=Console(quiet=True),
            )
        return folders[kind]

    return corpus
