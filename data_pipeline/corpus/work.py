"""Jobs that run once: the result of a finished job is stored, and a restarted build reads it.

A result is stored as JSON with the hashes of all files that the job wrote. It is reused only if every byte of these
files is unchanged; otherwise the job runs again.
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
"""Stored results of another version are ignored. Increment the second number when the meaning of a job changes."""


class JobRunner:
    """Runs jobs on workers and stores each result in a file named by a hash of the job.

    Requirements: a job contains everything that its result depends on; files are written atomically
    (`megaptm.storage.AtomicFile`); the function has a return annotation of numbers, strings, and dataclasses of these.
    """

    def __init__(self, folder: Path, workers: Workers, stages: Stages):
        self.folder = folder
        self.workers = workers
        self.stages = stages
        self.found = 0
        """Number of jobs whose result was stored by an earlier build."""
        self.damaged: list[str] = []
        """Files below `folder` that changed after an earlier build had written them. Their jobs ran again."""

    def run(
        self,
        name: str,
        function: Callable[[Job], Result],
        jobs: Iterable[Job],
        *,
        total: int | None = None,
        keep: bool = True,
    ) -> list[Result]:
        """Run all jobs and return their results in order. `total` is their number if `jobs` has no length.

        Without `keep`, results are not reused. Use this for effects outside of `folder`, which may be undone by others.
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
            # Workers look up stored results themselves, which distributes the hashing of files.
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
    """Path of the stored result below the folder, or None."""


@dataclass(frozen=True)
class _Done:
    result: Any
    found: bool = False
    damaged: tuple[str, ...] = ()


class _Damaged(Exception):  # noqa: N818  # no end, only more work
    """Changed files, as arguments of the exception."""


def _do(call: _Call) -> _Done:
    """Run a job on a worker. The worker stores the result itself, because the driver may be gone by then."""
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
"""Start of a stored result, with the hash of what follows up to the closing brace."""


def _remember(result: Any, function: Callable, folder: Path, name: str, paths: Iterable[Path]) -> None:
    files = {path.relative_to(folder).as_posix(): hash_of(str(path)) for path in paths}
    job = b'{"files":%s,"result":%s}' % (json.dumps(files).encode(), _type(function).dump_json(result))
    write_whole(folder / name, BEGINNING % hashlib.sha256(job).hexdigest().encode() + job + b"}")


def _remembered(function: Callable, folder: Path, name: str) -> Any:
    """Return a stored result; raise `FileNotFoundError` if there is none, and `_Damaged` if files have changed."""
    try:
        content = (folder / name).read_bytes()
    except FileNotFoundError:
        raise
    except OSError:  # unreadable: run the job again
        raise _Damaged(name) from None
    job = content[len(BEGINNING % bytes(64)) : -1]
    if content != BEGINNING % hashlib.sha256(job).hexdigest().encode() + job + b"}":
        raise _Damaged(name)
    try:
        parsed = json.loads(job)
        result = _type(function).validate_json(json.dumps(parsed["result"]), strict=True)
        files = FILES.validate_python(parsed["files"])
    except (ValueError, LookupError, TypeError, ValidationError):  # not written by this code
        raise _Damaged(name) from None
    if damaged := [file for file, sha256 in files.items() if not _is(folder / file, sha256)]:
        raise _Damaged(*damaged)
    return result


def _is(path: Path, sha256: str) -> bool:
    try:
        return hash_of(str(path)) == sha256
    except (OSError, UserError):  # missing or unreadable: run the job again
        return False


@lru_cache(maxsize=64)
def _type(function: Callable) -> TypeAdapter[Any]:
    """Return a type adapter for the function's return type, to write JSON and to validate what is read."""
    return TypeAdapter(get_type_hints(function)["return"])


def key_of(function: Callable, job: Any) -> str:
    """Return a key that is equal for equal jobs, in every process and on every machine."""
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
