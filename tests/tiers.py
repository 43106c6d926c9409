"""The quick tests, listed in tests/tiers.yaml.

python -m tests.tiers            print the quick tests, as arguments of pytest
python -m tests.tiers core       print those that pass without any family but gpt2, gpt3, bert and t5
python -m tests.tiers measure    run the quick tests and rewrite the CPU seconds of the list
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests import ROOT

LIST = ROOT / "tests/tiers.yaml"
PARTS = ("core", "all_families")
MEASURE = "measure"
CORE_FAMILIES = {"gpt", "bert", "t5"}
"""Folders of families that the part `core` needs."""
Tiers = dict[str, dict[str, float | None]]
"""Part -> test file, folder or test id -> CPU seconds."""


def read_tiers() -> Tiers:
    return yaml.safe_load(LIST.read_text(encoding="utf-8"))


def quick_tests(*parts: str) -> list[str]:
    """Return the listed tests of the parts; of all parts if none is named."""
    tiers = read_tiers()
    return [test for part in parts or PARTS for test in tiers[part]]


def with_seconds(tiers: Tiers, measured: dict[str, float]) -> Tiers:
    """Return the list with the CPU seconds of the tests or files below each entry."""
    return {
        part: {
            entry: round(sum(took for test, took in measured.items() if contains(entry, test)), 1) for entry in entries
        }
        for part, entries in tiers.items()
    }


def contains(entry: str, test: str) -> bool:
    """Whether a test id belongs to an entry: a folder, a file, a test or one parameter set of a test."""
    return test == entry or any(test.startswith(entry + end) for end in ("/", "::", "["))


def measure() -> None:
    """Run the quick tests in one process, and rewrite the CPU seconds of the list. Its comments stay."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "seconds.json")
        command = [sys.executable, "-m", "pytest", "-m", "not drill", "--cpu-seconds", str(record), *quick_tests()]
        subprocess.run(command, cwd=ROOT, check=True)
        measured = json.loads(record.read_text(encoding="utf-8"))
    comments = [line for line in LIST.read_text(encoding="utf-8").splitlines(keepends=True) if line.startswith("#")]
    tiers = with_seconds(read_tiers(), measured["tests"])
    LIST.write_text("".join(comments) + yaml.safe_dump(tiers, sort_keys=False, width=200), encoding="utf-8")
    print(f"{LIST.relative_to(ROOT)}: {sum(measured['files'].values()):.0f} CPU seconds")


if __name__ == "__main__":
    if sys.argv[1:] == [MEASURE]:
        measure()
    else:
        print(*quick_tests(*sys.argv[1:]), sep="\n")
