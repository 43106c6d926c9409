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

from data_pipeline.sources.compression import compression_of, without_compression
from data_pipeline.sources.content import ChunkStream, ChunksUntilError, expansion_error, open_file, read_chunks
from data_pipeline.sources.listing import is_hidden
from data_pipeline.sources.source import InputFile
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, to_unreadable_record
from megaptm.credentials import brief_message
from megaptm.data.files import open_tar, tar_members
from megaptm.errors import FULL_DISK, UserError


def archive_kind(name: str) -> Literal["zip", "tar"] | None:
    """Return the archive format that the name of a source file implies. A tar may be compressed; a zip compresses its
    own members."""
    suffix = PurePosixPath(without_compression(name).lower()).suffix
    if suffix == ".tar":
        return "tar"
    return "zip" if suffix == ".zip" and compression_of(name) is None else None


@dataclass(frozen=True)
class _ArchiveMember:
    name: str
    size: int
    stream: IO[bytes] | None
    """Stream of the member's bytes; None for a link, a device or another member without text."""


def copy_members(file: InputFile, handler: UnreadableHandler) -> Iterator[InputFile]:
    """Yield a local copy of each member of an archive that would be read if it were in a folder.

    A copy is deleted when the next one is requested. Raises `Unreadable`.
    """
    data = ChunksUntilError(read_chunks(file))
    archive_members = _zip_members(file, handler) if archive_kind(file.name) == "zip" else _tar_members(data)
    unpacked = 0
    for member in archive_members:
        # The name is only displayed and never used as a path to write to, so `..` in it is harmless.
        parts = PurePosixPath(member.name.encode("utf-8", "backslashreplace").decode()).parts
        inner_path = "/".join(part for part in parts if part not in ("..", "/"))
        if any(is_hidden(part) for part in inner_path.split("/")):
            continue
        name = f"{file.name}/{inner_path}"
        if member.stream is None:
            handler.count_skipped("not a file", name)
            continue
        if (unpacked := unpacked + member.size) > file.max_unpacked:
            raise expansion_error(file)
        with tempfile.NamedTemporaryFile(prefix="megaptm-member-") as copy:
            try:
                shutil.copyfileobj(member.stream, copy, 1 << 20)
                copy.flush()
            except (tarfile.TarError, Unreadable, EOFError) as error:
                raise data.error or _damaged_error(error) from None
            except Exception as error:  # zip compresses and checks each member separately
                if getattr(error, "errno", None) in FULL_DISK:
                    raise UserError(
                        f"{tempfile.gettempdir()} has no space for a copy of {inner_path} from {file.path} "
                        f"({member.size:,} bytes): set TMPDIR to a folder on a larger disk."
                    ) from None
                handler.handle_record(name, f"member {inner_path}", to_unreadable_record(error))
                continue
            yield replace(file, path=copy.name, name=name, size=member.size, label=f"{file.path}: {inner_path}")


def _zip_members(file: InputFile, handler: UnreadableHandler) -> Iterator[_ArchiveMember]:
    with open_file(file) as stream:
        try:
            archive = zipfile.ZipFile(stream)
        except UserError:  # raised when a server fails
            raise
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise _damaged_error(error) from None
        with archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                try:
                    opened = archive.open(info)
                except Exception as error:  # encrypted, or compressed with a method that Python does not support
                    name = info.filename.encode("utf-8", "backslashreplace").decode()
                    handler.handle_record(f"{file.name}/{name}", f"member {name}", to_unreadable_record(error))
                    continue
                with opened:
                    yield _ArchiveMember(info.filename, info.file_size, opened)


def _tar_members(data: ChunksUntilError) -> Iterator[_ArchiveMember]:
    try:
        with open_tar(io.BufferedReader(ChunkStream(data))) as archive:
            for info in tar_members(archive):
                if not info.isdir():
                    yield _ArchiveMember(info.name, info.size, archive.extractfile(info) if info.isreg() else None)
    except tarfile.TarError as error:
        raise data.error or _damaged_error(error) from None
    if data.error:
        raise data.error


def _damaged_error(error: Exception) -> Unreadable:
    if isinstance(error, Unreadable):
        return error
    return Unreadable("damaged", f"is not a readable archive ({brief_message(error)})", "download it again")
