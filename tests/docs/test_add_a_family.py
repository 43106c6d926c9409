"""The package of docs/add-a-family.md is installed, trained, resumed and exported, and passes the tests of all
families."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from megaptm.resilience.events import read_events
from tests import ROOT
from tests.docs.commands import commands_of, megaptm_arguments
from tests.families.deletion import copy_without

PAGE = ROOT / "docs" / "add-a-family.md"
FILE = re.compile(r'^```\w+ title="(.+?)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
FOLDER = "birds/wren"
"""Folder of the family in the package of the page."""
SMALL = {
    "train": [
        "train.steps=3",
        "train.batch=8",
        "layout.microbatch=8",
        "train.validate_batches=1",
        "track.enabled=false",
    ],
    "corpus build": ["limit_bytes=600000", "workers=0"],
}


def install(folder: Path) -> Path:
    """Write the files of the page, and the metadata that pip writes."""
    for path, content in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
    (folder / "birds/__init__.py").touch()
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name']}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"].items()
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()) for group, points in groups
    ]
    (metadata / "entry_points.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("package"))


def run(*command: str, folder: Path, path: tuple[Path, ...]) -> str:
    """Return the output of a Python module, which must succeed."""
    environment: dict[str, Any] = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTEST_ADDOPTS": "",  # applies to this process only
    }
    words = [sys.executable, "-m", *command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def files_with_families() -> list[str]:
    """Return the test files that read the catalogue. The collection of all files would take longer than the tests."""
    folders = ("families", "hub", "models", "parity", "plan")
    files = [file for folder in folders for file in sorted((ROOT / "tests" / folder).glob("test_*.py"))]
    return [str(file.relative_to(ROOT)) for file in files if "CATALOGUE" in file.read_text(encoding="utf-8")]


def test_commands_of_the_page_run(package: Path, tmp_path: Path) -> None:
    """Nothing but the entry point names the package: a run's config names the family, and evaluation needs no
    permission."""
    (tmp_path / "wren.yaml").write_text((package / "wren.yaml").read_text())
    commands = [words for command in commands_of(PAGE) if (words := megaptm_arguments(command.words))]
    outputs = {}
    for words in commands:
        small = next((more for name, more in SMALL.items() if " ".join(words).startswith(name)), [])
        outputs[" ".join(words)] = run("megaptm", *words, *small, folder=tmp_path, path=(ROOT, package))
    assert "changed-tokens" in outputs["families marsh-wren"]
    assert (tmp_path / "exported/wren/model.safetensors").is_file()
    resumed = ["train", "runs/wren", "train.steps=5", "optimizer.decay_steps=3", "track.enabled=false"]
    run("megaptm", *resumed, folder=tmp_path, path=(ROOT, package))
    assert [event["step"] for event in read_events(tmp_path / "runs/wren") if event["kind"] == "resume"] == [3]
    run("megaptm", "evaluate", "runs/wren", "--rows", "4", folder=tmp_path, path=(ROOT, package))


def test_package_passes_the_tests_of_all_families(package: Path) -> None:
    """Parameter counts, memory, model, conversion; a layout with tensor ranks and pipeline stages."""
    layout = "tests/layouts/test_layouts.py::test_layout_changes_no_result[marsh-wren-TP2+SPxPP2 recompute]"
    output = run(
        *("pytest", "-p", "no:cacheprovider", "-vv", "-m", "not drill", "-k", "wren", *files_with_families(), layout),
        folder=ROOT,
        path=(ROOT, package),
    )
    passed = set(re.findall(r"^(tests/\S+\.py)::\S*\[.*marsh-wren.* PASSED", output, re.MULTILINE))
    assert {
        "tests/layouts/test_layouts.py",
        "tests/models/test_parts.py",
        "tests/models/test_visibility.py",
        "tests/plan/test_count.py",
    } <= passed
    passed = set(re.findall(r"^(tests/\S+\.py)::\S*\[wren.* PASSED", output, re.MULTILINE))
    assert {"tests/hub/test_huggingface.py", "tests/parity/test_families.py"} <= passed


def test_own_tests_of_the_package_pass(package: Path) -> None:
    run("pytest", "-p", "no:cacheprovider", "tests/test_wren.py", folder=package, path=(ROOT, package))


def test_code_of_the_page_passes_linter_and_mypy(package: Path) -> None:
    run("ruff", "check", "--no-cache", f"--config={ROOT / 'pyproject.toml'}", ".", folder=package, path=(ROOT,))
    run(
        "ruff",
        "format",
        "--no-cache",
        "--check",
        f"--config={ROOT / 'pyproject.toml'}",
        ".",
        folder=package,
        path=(ROOT,),
    )
    options = (f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}")
    run("mypy", *options, "-p", "birds", folder=package, path=(ROOT, package))


def test_folder_moves_into_the_catalogue_with_one_line(package: Path, tmp_path: Path) -> None:
    copy = copy_without(set(), tmp_path)
    for file in (package / FOLDER).glob("*.py"):
        moved = copy / "megaptm/families/wren" / file.name
        moved.parent.mkdir(exist_ok=True)
        moved.write_text(file.read_text().replace("birds.wren", "megaptm.families.wren"))
    registry = copy / "megaptm/families/registry.py"
    registry.write_text(registry.read_text().replace("FOLDERS = (\n", 'FOLDERS = (\n    "wren",\n'))
    command = ("megaptm", "families", "marsh-wren", "--json")
    assert run(*command, folder=copy, path=(copy,)) == run(*command, folder=package, path=(ROOT, package))
