"""Each benchmark runs in its short form."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import ROOT

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
METRIC = re.compile(r"METRIC [a-z0-9_]+ -?\d+(\.\d+)? \S+ goal [<>]=\d+(\.\d+)?")


@pytest.mark.drill
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_runs(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(path), "--short"]
    with tempfile.TemporaryDirectory(prefix="b-", dir="/tmp") as short:  # names of Ray's sockets must be short
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": short}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = [line for line in done.stdout.splitlines() if line.startswith("METRIC")]
    assert metrics
    for line in metrics:
        assert METRIC.fullmatch(line), line


def test_benchmark_tables_are_complete() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for path in BENCHMARKS:
        assert f"| `python benchmarks/{path.name}" in page, path.name
    results, _, _ = page.partition("## Results")[2].partition("\n## ")
    rows = [line for line in results.splitlines() if line.startswith("| ")][1:]
    assert rows
    for row in rows:
        assert re.search(r"\| 20\d\d-\d\d-\d\d, [0-9a-f]{7,40} \|$", row), row
