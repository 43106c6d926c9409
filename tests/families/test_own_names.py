"""Families with new ideas touch their own folder, and one line of the registry."""

import re

import pytest

from tests import ROOT
from tests.families.own_names import REGISTRY, users

PAGE = ROOT / "docs/add-a-family.md"
SHOWN = re.findall(r"^\| `(\w+)` \| .* \| 1 \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
"""Folders in the table of the page."""


def test_page_shows_families() -> None:
    assert {"bigbird", "clip", "led"} <= {*SHOWN}


@pytest.mark.parametrize("folder", SHOWN)
def test_family_touches_one_folder_and_one_line(folder: str) -> None:
    assert users(folder) == {REGISTRY: {folder}}
