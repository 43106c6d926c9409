"""Facts in README and pages (families, layouts), and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megaptm.families import CATALOGUE
from megaptm.hub.counterparts import hugging_face_models
from megaptm.resilience.events import Event
from tests import ROOT
from tests.docs.commands import PAGES
from tests.drills.test_tiny_configs import FAMILIES as LIVES
from tests.families.groups import RECURRENT, VISION
from tests.layouts.cases import KINDS
from tests.layouts.test_layouts import CASES
from tests.learn.test_learn import KINDS as LEARN

README = (ROOT / "README.md").read_text(encoding="utf-8")
GUARANTEES = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
MORE_PAGES = (ROOT / "benchmarks/README.md",)
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
LITERAL = {"gpt3/xl-literal", "gpt3/13b-literal", "gpt3-banded/xl-literal", "gpt3-banded/13b-literal"}
"""Sizes of GPT-3's table read literally, without configs."""


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def families_in(row: str) -> list[str]:
    """Return the families in a row of README's table."""
    [cell] = re.findall(rf"^\| \*\*{row}\*\*: (.*?) \|", README, re.MULTILINE)
    return quoted(cell)


def test_readme_names_every_family() -> None:
    assert {*families_in("Decoders"), *families_in("Encoders"), *families_in("Encoder-decoders")} == {*CATALOGUE}
    assert families_in("Recurrent") == [*RECURRENT]
    assert families_in("Images") == [*VISION]


def test_readme_names_families_without_a_hugging_face_model() -> None:
    [names] = re.findall(r"which has no\s+model of (.*?) \(", README, re.DOTALL)
    assert set(quoted(names)) == {name for name, family in CATALOGUE.items() if not hugging_face_models(family)}


def test_guarantees_give_the_number_of_tested_layouts() -> None:
    [min_layouts, kinds, max_layouts] = re.findall(r"tested on (\d+) layouts or more, ([\w, ]+) on (\d+) ", GUARANTEES)[
        0
    ]
    layouts = {name: sum(family == name for family, _ in CASES) for name in CATALOGUE}
    assert min(layouts.values()) == int(min_layouts)
    assert set(re.findall(r"\w+\d?", kinds)) - {"and"} == set(KINDS)
    assert {layouts[kind] for kind in KINDS} == {int(max_layouts)}


def test_guarantees_name_the_families_that_learn() -> None:
    [kinds] = re.findall(r"Models of (.*) also beat themselves", GUARANTEES)
    assert {*re.split(", | and ", kinds)} == {*LEARN}
    assert [*LIVES] == [*CATALOGUE, *RECURRENT]


def test_each_published_size_has_a_config_and_each_family_a_tiny_one() -> None:
    """docs/families.md and docs/configs.md name the exceptions."""
    expected = {
        f"{name}/{size}"
        for name, table in {**CATALOGUE, **RECURRENT, **VISION}.items()
        for size in ("tiny", *table.sizes)
    }
    assert {name for name in expected if not (ROOT / f"configs/{name}.yaml").is_file()} == LITERAL
    for page in ("families", "configs"):
        names = quoted((ROOT / f"docs/{page}.md").read_text(encoding="utf-8"))
        assert {name.partition("/")[2] for name in LITERAL} <= {*names}, page


def test_pages_name_events_of_the_journal() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {*re.findall(r"event `([\w-]+)`", text)} <= {kind.kind for kind in Event.__subclasses__()}


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in titles}


def links(page: Path) -> list[tuple[Path, str]]:
    """Return file and heading of each link inside the repository."""
    targets = (link.partition("#") for link in LINK.findall(page.read_text(encoding="utf-8")))
    return [((page.parent / path).resolve() if path else page, heading) for path, _, heading in targets]


@pytest.mark.parametrize("page", [*PAGES, *MORE_PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    for file, heading in links(page):
        assert file.exists(), file
        assert not heading or heading in headings(file), heading


def test_every_page_is_reachable_from_readme() -> None:
    visited, queue = set[Path](), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page not in visited and page.suffix == ".md":
            visited.add(page)
            queue += [file for file, _ in links(page)]
    assert [page.name for page in PAGES if page.resolve() not in visited] == []
