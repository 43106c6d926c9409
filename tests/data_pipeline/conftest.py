"""A small folder of real text: a few modules of Python's standard library, with the clutter of a messy folder."""

import json
import shutil
import sysconfig
from pathlib import Path

import pytest

from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source

MODULES = ("argparse", "ast", "calendar", "configparser", "difflib", "json/decoder", "textwrap", "zipfile")
LINES = [
    "The first record has a sentence. And a second one!",
    "A record that comes twice.",
    "A record that comes twice.",
]


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "library"
    folder.mkdir()
    for module in MODULES:
        shutil.copy(Path(sysconfig.get_path("stdlib"), f"{module}.py"), folder / f"{module.replace('/', '_')}.py")
    shutil.copy(folder / "ast.py", folder / "copy_of_ast.py")
    (folder / "latin.txt").write_bytes("caf\u00e9 au lait, s'il vous pla\u00eet".encode("latin-1"))
    (folder / "blank.md").write_text(" \n\n")
    (folder / "short.rst").write_text("too short")
    (folder / "records.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "secret.txt").write_text("what nobody asked to be read, long enough to be kept")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture
def recipe(text: Path) -> Recipe:
    """Several parts and shards from little text."""
    return Recipe(
        sources=(Source(str(text)),),
        tokenizer=TokenizerRecipe(vocabulary=500),
        validation=0.2,
        shard_bytes=64 << 10,
    )


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr("data_pipeline.corpus.parts.PART_BYTES", 100 << 10)
