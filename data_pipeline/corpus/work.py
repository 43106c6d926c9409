"""Work that is done once: each finished job leaves its result behind, and a build that begins again finds it there.

A result is JSON, with the hashes of all files that the job wrote. What is found is taken if every byte of it is still
what it was; else the job is done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from data_pipeline.corpus.workers import Workers
from data_pipeline.folders import FINISHED
from data_pipeline.progress import Stages
from megaptm import __version__
from megaptm.errors import UserError
from megaptm.storage import appeared, hash_of, write_whole

Job = TypeVar("Job")
Result = TypeVar("Result")

VERSION = f"{__version__} 5"
"""Results of another version are not taken. The second number rises when a job's meaning changes."""


class JobRunner:
    """Runs the jobs of a build on workers, and keeps each result in a file named by the job's content.

    So a job must say everything that its result depends on, a file that it writes must be complete when it appears
    (`megaptm.storage.AtomicFile`), and its function must say what it returns: numbers, texts, and dataclasses of these.
    """

    def __init__(self, folder: Path, workers: Workers, stages: Stages):
        self.folder = folder
        self.workers = workers
        self.stages = stages
        self.found = 0
        """Jobs that an earlier build had finished."""
        self.damaged: list[str] = []
        """Files below `folder` that were not what an earlier build had written. Their jobs were done again."""

    def run(
        self,
        name: str,
        function: Callable[[Job], Result],
        jobs: Iterable[Job],
        *,
        total: int | None = None,
        keep: bool = True,
    ) -> list[Result]:
        """The results of all jobs, in their order. `total` is their number, where `jobs` has no length.

        Without `keep` every job is done again: for what is done elsewhere, where someone else may undo it.
        """
        results: dict[int, Result] = {}
        kept = Path(FINISHED, name.replace(" ", "-"))
        (self.folder / kept).mkdir(parents=True, exist_ok=True)
        count = total if total is not None else len(jobs)  # type: ignore[arg-type]
        calls = (
            _Call(function, job, str(self.folder), str(kept / f"{key_of(function, job)}.json") if keep else None)
            for job in jobs
        )
        with self.stages.stage(name, count) as advance:
            # Workers look for results themselves: what there is to hash is then hashed by all of them.
            for number, done in self.workers.run(_do, calls):
                results[number] = done.result
                self.found += done.found
                self.damaged += done.damaged
                advance()
        return [results[number] for number in range(len(results))]


@dataclass(frozen=True)
class _Call:
    function: Callable[[Any], Any]
    job: Any
    folder: str
    kept: str | None
    """File below the folder."""


@dataclass(frozen=True)
class _Done:
    result: Any
    found: bool = False
    damaged: tuple[str, ...] = ()


class _Damaged(Exception):  # noqa: N818  # no end, only more work
    """Files, its arguments, that are not what was written."""


def _do(call: _Call) -> _Done:
    """Runs on a worker, which keeps the result itself: the driver may be gone when it is there."""
    if call.kept is None:
        return _Done(call.function(call.job))
    try:
        return _Done(_remembered(call.function, Path(call.folder), call.kept), found=True)
    except FileNotFoundError:
        damaged: tuple[str, ...] = ()
    except _Damaged as files:
        damaged = files.args
    with appeared() as paths:
        result = call.function(call.job)
    _remember(result, call.function, Path(call.folder), call.kept, paths)
    return _Done(result, damaged=damaged)


FILES = TypeAdapter(dict[str, str])
"""Path below the folder -> sha256."""
BEGINNING = b'{"sha256":"%s","job":'
"""Of a result: the hash of what follows, up to the closing brace."""


def _remember(result: Any, function: Callable, folder: Path, name: str, paths: Iterable[Path]) -> None:
    files = {path.relative_to(folder).as_posix(): hash_of(str(path)) for path in paths}
    job = b'{"files":%s,"result":%s}' % (json.dumps(files).encode(), _type(function).dump_json(result))
    write_whole(folder / name, BEGINNING % hashlib.sha256(job).hexdigest().encode() + job + b"}")


def _remembered(function: Callable, folder: Path, name: str) -> Any:
    """The result; raises `FileNotFoundError` where there is none, and `_Damaged`."""
    try:
        content = (folder / name).read_bytes()
    except FileNotFoundError:
        raise
    except OSError:  # it cannot be read: then it is made again, as a file of the job is
        raise _Damaged(name) from None
    job = content[len(BEGINNING % bytes(64)) : -1]
    if content != BEGINNING % hashlib.sha256(job).hexdigest().encode() + job + b"}":
        raise _Damaged(name)
    try:
        parsed = json.loads(job)
        result = _type(function).validate_json(json.dumps(parsed["result"]), strict=True)
        files = FILES.validate_python(parsed["files"])
    except (ValueError, LookupError, TypeError, ValidationError):  # someone else wrote it
        raise _Damaged(name) from None
    if damaged := [file for file, sha256 in files.items() if not _is(folder / file, sha256)]:
        raise _Damaged(*damaged)
    return result


def _is(path: Path, sha256: str) -> bool:
    try:
        return hash_of(str(path)) == sha256
    except (OSError, UserError):  # it is gone, or cannot be read: then it is written again
        return False


@lru_cache(maxsize=64)
def _type(function: Callable) -> TypeAdapter[Any]:
    """What a function returns, to write as JSON and to read nothing else."""
    return TypeAdapter(get_type_hints(function)["return"])


def key_of(function: Callable, job: Any) -> str:
    """Equal for equal jobs, in every process and on every machine."""
    digest = hashlib.blake2b(digest_size=16)
    for token in _tokens((VERSION, function.__module__, function.__qualname__, job)):
        digest.update(len(token).to_bytes(8, "little"))
        digest.update(token)
    return digest.hexdigest()


def _tokens(value: Any) -> Iterator[bytes]:
    if is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        for field in fields(value):
            yield field.name.encode()
            yield from _tokens(getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype.str}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key in sorted(value):
            yield from _tokens((key, value[key]))
    elif isinstance(value, tuple | list):
        yield f"sequence {len(value)}".encode()
        for entry in value:
            yield from _tokens(entry)
    else:
        assert value is None or isinstance(value, str | bytes | int | float | Path), f"a job holds {value!r}"
        yield repr(value).encode()
