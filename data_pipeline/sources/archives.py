"""Archives of files. Members are read like the files of a folder, in archive order.

Each member is first copied to the local disk, because it is read several times, for example to detect its encoding. The
stream of a compressed archive cannot seek back.
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
from data_pipeline.sources.content import Stream, UpToFault, chunks, open_file, unpacks_to_too_much
from data_pipeline.sources.listing import is_hidden
from data_pipeline.sources.source import InputFile
from megaptm.credentials import in_brief
from megaptm.data.files import open_tar, tar_members
from megaptm.errors import FULL_DISK, UserError


def archive_kind(name: str) -> Literal["zip", "tar"] | None:
    """Return the archive format that a file name implies. A tar may be compressed; a zip compresses its own members."""
    suffix = PurePosixPath(without_compression(name).lower()).suffix
    if suffix == ".tar":
        return "tar"
    return "zip" if suffix == ".zip" and compression_of(name) is None else None


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    stream: IO[bytes] | None
    """None for a link, a device or another member without text."""


def members(file: InputFile, bad: Bad) -> Iterator[InputFile]:
    """Yield a local copy of each member that would be read if it were in a folder.

    A copy is deleted when the next one is requested. Raises `Unreadable`.
    """
    data = UpToFault(chunks(file))
    found = _zip_members(file, bad) if archive_kind(file.name) == "zip" else _tar_members(data)
    unpacked = 0
    for member in found:
        # The name is only displayed and never used as a path to write to, so `..` in it is harmless.
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
                raise data.fault or _damaged(error) from None
            except Exception as error:  # zip compresses and checks each member separately
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
        except UserError:  # raised when a server fails
            raise
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise _damaged(error) from None
        with archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                try:
                    opened = archive.open(info)
                except Exception as error:  # encrypted, or compressed with a method that Python does not support
                    name = info.filename.encode("utf-8", "backslashreplace").decode()
                    bad.record(f"{file.name}/{name}", f"member {name}", bad_record(error))
                    continue
                with opened:
                    yield _Member(info.filename, info.file_size, opened)


def _tar_members(data: UpToFault) -> Iterator[_Member]:
    try:
        with open_tar(io.BufferedReader(Stream(data))) as archive:
            for info in tar_members(archive):
                if not info.isdir():
                    yield _Member(info.name, info.size, archive.extractfile(info) if info.isreg() else None)
    except tarfile.TarError as error:
        raise data.fault or _damaged(error) from None
    if data.fault:
        raise data.fault


def _damaged(error: Exception) -> Unreadable:
    if isinstance(error, Unreadable):
        return error
    return Unreadable("damaged", f"is no archive that can be read ({in_brief(error)})", "fetch it again")
