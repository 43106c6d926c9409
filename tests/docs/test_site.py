"""The documentation site has every page."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests import ROOT


def pages_of(nav: Any) -> Iterator[str]:
    """Pages of a navigation tree of mkdocs."""
    match nav:
        case str():
            yield nav
        case dict():
            yield from pages_of([*nav.values()])
        case list():
            for entry in nav:
                yield from pages_of(entry)


def test_every_page_is_in_the_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= {*pages_of(config["nav"])}


@pytest.mark.drill
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs mkdocs-material: `make site` installs it")
def test_the_site_builds_without_a_broken_link(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", f"--site-dir={tmp_path / 'site'}"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site/api/index.html").is_file()
