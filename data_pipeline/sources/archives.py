"""Archives of files: members are read as the files of a folder are, in their order, each copied to the disk first.

A member is read several times over (to see its encoding, say), which a stream of a compressed archive cannot.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import IO, Literal

from data_pipeline.sources.bad import Bad, Unreadable, bad_record
from data_pipeline.sources.compression import compression_of, without_compression
from data_pipeline.sources.content import Stream, chunks, open_file, unpacks_to_too_much
from data_pipeline.sources.listing import is_hidden
from data_pipeline.sources.source import InputFile
from megaptm.credentials import in_brief
from megaptm.data.files import open_tar, tar_members
from megaptm.errors import FULL_DISK, UserError


def archive_kind(name: str) -> Literal["zip", "tar"] | None:
    """Of a file's name; a tar may be compressed, a zip compresses itself."""
    suffix = PurePosixPath(without_compression(name).lower()).suffix
    if suffix == ".tar":
        return "tar"
    return "zip" if suffix == ".zip" and compression_of(name) is None else None


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    stream: IO[bytes] | None
    """None: a link, a device or another thing that holds no text."""


def members(file: InputFile, bad: Bad) -> Iterator[InputFile]:
    """Copies of all members that a folder would be asked for, each gone when the next comes; raises `Unreadable`."""
    found = _zip_members(file, bad) if archive_kind(file.name) == "zip" else _tar_members(file)
    unpacked = 0
    for member in found:
        # A name is only ever shown: where it would lead is of no account.
        parts = PurePosixPath(member.name.encode("utf-8", "backslashreplace").decode()).parts
        below = "/".join(part for part in parts if part not in ("..", "/"))
        if any(is_hidden(part) for part in below.split("/")):
            continue
        name = f"{file.name}/{below}"
        if member.stream is None:
            bad.left_out("not a file", name)
            continue
        if (unpacked := unpacked + member.size) > file.max_unpacked:
            raise unpacks_to_too_much(file)
        with tempfile.NamedTemporaryFile(prefix="megaptm-member-") as copy:
            try:
                shutil.copyfileobj(member.stream, copy, 1 << 20)
                copy.flush()
            except (tarfile.TarError, Unreadable, EOFError) as error:
                raise _damaged(error) from None
            except Exception as error:  # of zip each member is compressed and checked by itself
                if getattr(error, "errno", None) in FULL_DISK:
                    raise UserError(
                        f"{tempfile.gettempdir()} has no room for a copy of {below} from {file.path} ({member.size:,} "
                        "bytes): set TMPDIR to a folder of a larger disk."
                    ) from None
                bad.record(name, f"member {below}", bad_record(error))
                continue
            yield replace(file, path=copy.name, name=name, size=member.size, label=f"{file.path}: {below}")


def _zip_members(file: InputFile, bad: Bad) -> Iterator[_Member]:
    with open_file(file) as stream:
        try:
            archive = zipfile.ZipFile(stream)
        except UserError:  # of a server that is gone
            raise
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise _damaged(error) from None
        with archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                try:
                    opened = archive.open(info)
                except Exception as error:  # encrypted, or compressed in a way that Python does not know
                    name = info.filename.encode("utf-8", "backslashreplace").decode()
                    bad.record(f"{file.name}/{name}", f"member {name}", bad_record(error))
                    continue
                with opened:
                    yield _Member(info.filename, info.file_size, opened)


def _tar_members(file: InputFile) -> Iterator[_Member]:
    try:
        with open_tar(io.BufferedReader(Stream(chunks(file)))) as archive:
            for info in tar_members(archive):
                if not info.isdir():
                    yield _Member(info.name, info.size, archive.extractfile(info) if info.isreg() else None)
    except tarfile.TarError as error:
        raise _damaged(error) from None


def _damaged(error: Exception) -> Unreadable:
    if isinstance(error, Unreadable):
        return error
    return Unreadable("damaged", f"is no archive that can be read ({in_brief(error)})", "fetch it again")
