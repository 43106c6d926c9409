"""The tutorial runs: its commands in order, with its config and its script, on less text and with fewer steps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from megaptm.__main__ import main
from tests import ROOT
from tests.docs.commands import commands_of, megaptm_arguments
from tests.forked import megaptm

PAGE = ROOT / "docs" / "tutorial.md"
SMALL = {
    "corpus build": ["limit_bytes=600000", "workers=0"],
    "train": ["train.steps=4", "train.validate_batches=1", "checkpoint.every=2", "track.enabled=false"],
    "evaluate": ["--rows", "4"],
}


def fenced(language: str) -> str:
    """Return the only fenced block of the page in a language."""
    [block] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return block


def run(arguments: list[str], folder: Path) -> str:
    """Return the output of a command in its small form."""
    small = next((more for name, more in SMALL.items() if " ".join(arguments).startswith(name)), [])
    if arguments[0] == "train":
        return megaptm(*arguments, *small, folder=folder)
    result = CliRunner().invoke(main, [*arguments, *small], catch_exceptions=False)
    assert result.exit_code == 0, f"{arguments}\n{result.output}"
    return result.output


def test_tutorial_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = re.sub(r"STEPS = \d+", "STEPS = 2", fenced("python"))
    script = re.sub(r"PACKAGES = \[.*\]", 'PACKAGES = ["dbm", "json"]', script)
    (tmp_path / "finetune.py").write_text(script, encoding="utf-8")
    (tmp_path / "encoder.yaml").write_text(fenced("yaml"), encoding="utf-8")
    commands = [arguments for command in commands_of(PAGE) if (arguments := megaptm_arguments(command.words))]
    outputs = {arguments[0]: run(arguments, tmp_path) for arguments in commands}
    assert "step 4/4" in outputs["train"]
    assert "unigram" in outputs["evaluate"]
    assert "mask" in outputs["generate"]
    done = subprocess.run([sys.executable, "finetune.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "pre-trained encoder" in done.stdout
    assert (tmp_path / "exported/classifier/model.safetensors").is_file()
