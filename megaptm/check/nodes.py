"""Topic `nodes`: every node of an allocation says what it is and sees; without one, only this machine."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from megaptm.check.ask import Answers, ask
from megaptm.check.compare import TOPIC, Asked, compare
from megaptm.check.finding import Case, Finding
from megaptm.check.node import nearest
from megaptm.config import Config
from megaptm.errors import UserError

PATIENCE_SECONDS = 60.0


def check_nodes(case: Case) -> Iterator[Finding]:
    """What the nodes say, compared."""
    run = Path(case.config.run)
    with token(run) as written:
        asked = questions(case.config, written.parent)
        words = [*(f"--folder={one}" for one in asked.folders), *(f"--place={one}" for one in asked.places)]
        answers = ask("megaptm.check.node", [f"--token={written}", *words], seconds=PATIENCE_SECONDS)
    yield from compare(answers, asked)
    yield from not_asked(case, answers)


def questions(config: Config, token: Path) -> Asked:
    """Folders that each node must see, and those that it must be able to write to."""
    folders = tuple(corpus for corpus in config.data.mix if "://" not in corpus)
    cache = (config.data.cache,) if config.data.cache and len(folders) < len(config.data.mix) else ()
    return Asked(folders=folders, places=(config.run, *cache), token=str(token))


@contextlib.contextmanager
def token(run: Path) -> Iterator[Path]:
    """A file in the run folder, or where that would be made, for as long as the nodes are asked."""
    path = nearest(run) / f".megaptm-check-{secrets.token_hex(8)}"
    try:
        path.touch()
    except OSError as error:
        raise UserError(
            f"run ({run}) cannot be made in {path.parent} ({error.strerror}): choose another run=FOLDER."
        ) from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def not_asked(case: Case, answers: Answers) -> Iterator[Finding]:
    """That there will be others, which nobody can ask before they are allocated."""
    alone = case.request.nodes == 1 or (case.request.nodes is None and case.config.layout.processes == 1)
    if not answers.everywhere and not alone:
        says = "Only this machine was asked: inside an allocation (salloc, sbatch, a Ray job) check asks every node."
        yield Finding(TOPIC, "unknown", says)
