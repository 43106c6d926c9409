"""docs/tokenizer-scripts.md is the output of the command that it names."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests import ROOT

PAGE, COMMAND = ROOT / "docs/tokenizer-scripts.md", ROOT / "benchmarks/scripts.py"


def rows_by_script(text: str) -> dict[str, list[str]]:
    """Return the rows of the table of each script."""
    sections = text.split("\n\n## ")[1:]
    return {section.partition("\n")[0]: [row for row in section.splitlines() if "%" in row] for section in sections}


@pytest.mark.parametrize(
    "names",
    [
        ["unigram (T5)", "wordpiece (BERT)", "imported albert"],
        pytest.param([], marks=pytest.mark.drill, id="all"),
    ],
    ids=len,
)
def test_page_has_the_rows_of_the_command(names: list[str]) -> None:
    options = ["--names", *names] if names else []
    done = subprocess.run([sys.executable, COMMAND, *options], capture_output=True, text=True, check=True)
    printed, page = rows_by_script(f"\n\n{done.stdout}"), rows_by_script(PAGE.read_text(encoding="utf-8"))
    assert printed.keys() == page.keys()
    assert all(printed.values())
    for script, rows in printed.items():
        own = [row for row in page[script] if not names or row.split(" | ")[0].removeprefix("| ") in names]
        assert rows == own, script


def test_page_has_the_explanation_of_the_command() -> None:
    explanation = ast.get_docstring(ast.parse(COMMAND.read_text(encoding="utf-8")))
    assert explanation is not None
    title, command, *parts = explanation.split("\n\n")
    page = PAGE.read_text(encoding="utf-8")
    assert page.startswith("\n\n".join([f"# {title.rstrip('.')}", f"Printed by `{command.strip()}`.", *parts]))
