"""The corpora of the tiny configs, built by the very commands that these say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests import ROOT

SHELL = 'set -e; megaptm() { "$PYTHON" -m megaptm "$@"; }; python() { "$PYTHON" "$@"; }\n'


def tiny_config(family: str) -> Path:
    return ROOT / f"configs/{family}/tiny.yaml"


def corpus_of(family: str) -> str:
    """Where a family's tiny config, or the one that it extends, says that its corpus is; the first of several, which
    are made together."""
    path = tiny_config(family)
    while "mix" not in (settings := yaml.safe_load(path.read_text(encoding="utf-8"))).get("data", {}):
        path = path.parent / settings["extends"]
    return next(iter(settings["data"]["mix"]))


def commands_for(corpus: str) -> str:
    """What the tiny configs tell the reader to type for it."""
    for path in sorted((ROOT / "configs").glob("*/tiny.yaml")):
        commands = commands_of(path)
        if re.search(rf"out={corpus}(\s|$)", commands):
            return commands
    raise AssertionError(f"no tiny config says how to build {corpus}")


def commands_of(config: Path) -> str:
    """The indented lines of its comment."""
    return "".join(re.findall(r"^#   (.*\n)", config.read_text(encoding="utf-8"), re.MULTILINE))


def run_in(folder: Path, commands: str) -> None:
    """As typed in a shell."""
    done = subprocess.run(
        ["bash", "-c", SHELL + commands],
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def documented_corpora(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Family -> the folder where `megaptm train configs/FAMILY/tiny.yaml` finds its corpus, made on first request."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "configs").symlink_to(ROOT / "configs")

    def built(family: str) -> Path:
        if not (folder / (corpus := corpus_of(family))).exists():
            run_in(folder, commands_for(corpus))
        return folder

    return built
