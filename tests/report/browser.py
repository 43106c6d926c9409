"""Headless Chromium: what a page looks like to a reader."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
SCRIPT = """<script>
const size = (element) => [element.getBoundingClientRect().width, element.getBoundingClientRect().height];
const all = (name) => [...document.querySelectorAll(name)];
const seen = {
    overflow: document.documentElement.scrollWidth - innerWidth,
    text: document.body.innerText,
    headings: all("h2").map((element) => element.innerText),
    svg: all("svg").map(size),
    curves: all("svg path").length,
    bars: all(".bar").map(size),
    marks: all("mark").map((element) => element.innerText),
    cells: all("td").map((element) => element.innerText),
    requests: performance.getEntriesByType("resource").map((entry) => entry.name),
};
const result = document.createElement("pre");
result.id = "seen";
result.innerText = JSON.stringify(seen);
document.body.appendChild(result);
</script>"""


def look(page: Path, *, width: int = 1000) -> dict[str, Any]:
    """Return what Chromium shows of a page: texts, sizes in pixels, requests."""
    looked_at = page.with_suffix(f".{width}.html")
    looked_at.write_text(page.read_text().replace("</body>", f"{SCRIPT}</body>"))
    assert PROGRAM is not None
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},2000")
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [PROGRAM, *options, profile, "--dump-dom", looked_at.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    [content] = re.findall(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    return json.loads(unescape(content.replace("<br>", "\n")))
