"""Fixtures shared by the tests of several packages, and the distribution of tests over workers."""

import gc
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from megaptm.families import FAMILIES
from tests import cpu_seconds
from tests.faulty_files import faulty_files
from tests.processes import RAY_BESIDE_OTHERS
from tests.ranks import close_worlds
from tests.realtext import real_corpus
from tests.storage.server import faults, s3

__all__ = ["faults", "faulty_files", "real_corpus", "s3"]

LONGEST = ("real", "train", "layouts", "learn", "faults", "track", "docs", "plan", "recorded", "test_demo.py")

FAMILY_SECONDS = 15

os.environ |= RAY_BESIDE_OTHERS

# The time of an example depends more on the load of the machine than on the code.
settings.register_profile("megaptm", deadline=None)
settings.load_profile("megaptm")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small steps are no faster on two threads, and far slower if the threads wait for each other on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_addoption(parser: pytest.Parser) -> None:
    cpu_seconds.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Restore SIGHUP, which the caller of the tests may ignore (nohup) and commands would inherit."""
    cpu_seconds.register(config)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    gc.disable()  # until everything is imported, of which nothing is garbage


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest folders first: real clusters, which mostly wait, then folders that start runs."""
    items.sort(key=lambda item: _turn(folder_of(item.nodeid).partition("/")[0]))


def _turn(folder: str) -> int:
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers, give a folder's tests to one worker, because they share fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return folder_of(nodeid)

    return ByFolder(config, log)


def folder_of(nodeid: str) -> str:
    """Return the folder of a test id: `plan` for `tests/plan/test_step.py::test_it`; a file outside folders is its own.

    Real clusters have two groups, `real/ray` and `real/slurm`, which share nothing.
    """
    _, folder, *inner = nodeid.partition("::")[0].split("/")
    return f"real/{inner[0].split('_')[1]}" if folder == "real" else folder


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the waiting ranks of a module."""
    if nextitem is None or nextitem.path != item.path:
        close_worlds()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the seconds of each family's tests, if they exceed the limit of docs/add-a-family.md."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for family in families_of(getattr(report, "nodeid", "")):
                seconds[family] += getattr(report, "duration", 0.0)
    lines = ", ".join(f"{family} {taken:.0f} s" for family, taken in seconds.most_common() if taken > FAMILY_SECONDS)
    if lines:
        terminalreporter.write_line(f"Families whose tests took more than {FAMILY_SECONDS} s: {lines}")


def families_of(nodeid: str) -> set[str]:
    """Return the family of a test id: bert for `tests/layouts/test_layouts.py::test_it[bert-TP2]`, glove for
    `tests/words/test_glove_run.py::test_it`."""
    families = re.search(r"\[(.*)\]$", nodeid)
    words = re.split(r"-(?!v?\d|banded)|[ /,]", families.group(1)) if families else []
    file = Path(nodeid.partition("::")[0]).stem.removeprefix("test_").removesuffix("_run").replace("_", "-")
    return {*FAMILIES} & {*words, file}
