"""Fixtures that tests of several parts share, and which tests may run beside which."""

import gc
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from megaptm.families import FAMILIES
from tests.faulty_files import faulty_files
from tests.ranks import close_worlds
from tests.realtext import real_corpus
from tests.storage.server import faults, s3

__all__ = ["faults", "faulty_files", "real_corpus", "s3"]

LONGEST = ("real", "train", "layouts", "learn", "track", "docs", "plan", "recorded", "test_demo.py")

FAMILY_SECONDS = 15

# How long an example takes says more of what else the machine does than of the code.
settings.register_profile("megaptm", deadline=None)
settings.load_profile("megaptm")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small steps are no faster on two threads, and far slower where those wait for each other on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_configure() -> None:
    """A terminal's end is not ignored, though who started the tests may ignore it (nohup): commands would as well."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    gc.disable()  # until all is imported, of which nothing is garbage


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest folders first, so that none is left for the end: those of real clusters, which mostly wait, so
    that others can compute beside them, then those that start runs."""
    items.sort(key=lambda item: _turn(folder_of(item.nodeid).partition("/")[0]))


def _turn(folder: str) -> int:
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where there are several workers, each takes a folder's tests at a time, for the sake of what they share."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return folder_of(nodeid)

    return ByFolder(config, log)


def folder_of(nodeid: str) -> str:
    """`tests/plan/test_step.py::test_it` -> `plan`; a file that is in no folder is one by itself.

    Of real clusters there are two kinds, which share nothing: `real/ray` and `real/slurm`.
    """
    _, folder, *rest = nodeid.partition("::")[0].split("/")
    return f"real/{rest[0].split('_')[1]}" if folder == "real" else folder


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ranks that wait end with their module."""
    if nextitem is None or nextitem.path != item.path:
        close_worlds()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What tests of each family took, where it is more than a family may add (docs/add-a-family.md)."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for family in families_of(getattr(report, "nodeid", "")):
                seconds[family] += getattr(report, "duration", 0.0)
    told = ", ".join(f"{family} {taken:.0f} s" for family, taken in seconds.most_common() if taken > FAMILY_SECONDS)
    if told:
        terminalreporter.write_line(f"Families whose tests took more than {FAMILY_SECONDS} s: {told}")


def families_of(nodeid: str) -> set[str]:
    """`tests/layouts/test_layouts.py::test_it[bert-TP2]` -> bert, `tests/words/test_glove_run.py::test_it` -> glove."""
    found = re.search(r"\[(.*)\]$", nodeid)
    words = re.split(r"-(?!v?\d|banded)|[ /,]", found.group(1)) if found else []
    file = Path(nodeid.partition("::")[0]).stem.removeprefix("test_").removesuffix("_run").replace("_", "-")
    return {*FAMILIES} & {*words, file}
