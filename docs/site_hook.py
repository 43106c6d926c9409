"""Hook of mkdocs.yml: add pages that lie outside of docs/ to the site, and adapt their links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Path in the repository -> page of the site."""
API = "# API reference\n\nGenerated from docstrings. [As a library](library.md) has examples.\n\n::: megaptm.api\n"
LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside of docs/, and the API reference."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_with_site_links(text, (ROOT / source).parent)))
    files.append(File.generated(config, "api.md", content=API))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapt links of pages in docs/ to pages outside."""
    return markdown if page.file.generated_by else _with_site_links(markdown, ROOT / "docs")


def _with_site_links(text: str, folder: Path) -> str:
    """Replace links to files of the repository by links to pages of the site; drop links to other files."""

    def replace(match: re.Match[str]) -> str:
        target, anchor = (folder / match[1]).resolve(), match[2] or ""
        if target.is_relative_to(ROOT / "docs"):
            return f"]({target.relative_to(ROOT / 'docs')}{anchor})"
        page = PAGES.get(str(target.relative_to(ROOT)))
        return f"]({page}{anchor})" if page else "](index.md)"

    return LINK.sub(replace, text)
