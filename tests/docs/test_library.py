"""The examples of docs/library.md run in order, in a folder with the corpus and runs that they name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import megaptm
from megaptm.hub.huggingface import to_hugging_face
from megaptm.run.checkpoint import open_checkpoint
from tests import ROOT
from tests.train.runs import build, save_untrained, write_text

PAGE = ROOT / "docs" / "library.md"


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def export(run: Path, folder: Path) -> None:
    checkpoint = open_checkpoint(run)
    to_hugging_face(checkpoint.spec, checkpoint.weights(), checkpoint.tokenizer, folder)


def test_examples_run(real_corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpora").mkdir()
    Path("corpora/books").symlink_to(real_corpus("byte-bpe"))
    text = write_text(tmp_path / "tales")
    for family in ("bert", "t5"):
        Path("runs").mkdir(exist_ok=True)
        save_untrained(family, Path(f"runs/{family}").absolute(), build(text, tmp_path / family, family))
    names: dict[str, object] = {}
    for example in examples():
        if "exported/mine" in example:
            export(Path("runs/mine"), Path("exported/mine"))
        exec(compile(example, str(PAGE), "exec"), names)
    assert open_checkpoint("runs/mine").step == 6


def test_page_has_every_public_name():
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in megaptm.__all__ if name != "__version__" and name not in page] == []


def test_import_is_light():
    heavy = {"torch", "pydantic", "numpy", "yaml", "click"}
    code = f"import megaptm, sys; sys.exit(', '.join({heavy} & {{*sys.modules}}) or 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
