"""Corpora of the tiny configs, built by the commands in their comments."""

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
    """Return the path of the corpus in a family's tiny config, or in the config that it extends; the first of several,
    which are built together."""
    path = tiny_config(family)
    while "mix" not in (settings := yaml.safe_load(path.read_text(encoding="utf-8"))).get("data", {}):
        path = path.parent / settings["extends"]
    return next(iter(settings["data"]["mix"]))


def commands_for(corpus: str) -> str:
    """Return the commands of the tiny config that builds this corpus."""
    for path in sorted((ROOT / "configs").glob("*/tiny.yaml")):
        commands = commands_of(path)
        if re.search(rf"out={corpus}(\s|$)", commands):
            return commands
    raise AssertionError(f"no tiny config says how to build {corpus}")


def commands_of(config: Path) -> str:
    """Return the indented lines of a config's comment."""
    return "".join(re.findall(r"^#   (.*\n)", config.read_text(encoding="utf-8"), re.MULTILINE))


def run_in(folder: Path, commands: str) -> None:
    """Run commands in a shell."""
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
    """Function from a family to the folder in which `megaptm train configs/FAMILY/tiny.yaml` finds its corpus, built on
    the first request."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "configs").symlink_to(ROOT / "configs")

    def build(family: str) -> Path:
        if not (folder / (corpus := corpus_of(family))).exists():
            run_in(folder, commands_for(corpus))
        return folder

    return build
