"""Given shards in a folder or at a URL: list them, and open one at a time.

A remote shard is copied to a temporary local file while it is read, and stays at its URL.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.images.folders import refuse_odd_name
from data_pipeline.sources.remote import list_url
from megaptm.data.addresses import is_address
from megaptm.errors import UserError
from megaptm.storage import is_remote, open_remote
from megaptm.storage.atomic_file import SUFFIX

PACKED = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2")
CHUNK = 4 << 20
"""Bytes copied at a time."""


@dataclass(frozen=True)
class GivenShard:
    """Shard that existed before the build."""

    place: str
    """Path or URL."""
    size: int
    version: str
    """Version by which a continued build detects a changed shard."""

    @classmethod
    def at(cls, path: Path) -> GivenShard:
        status = path.stat()
        return cls(str(path), status.st_size, str(status.st_mtime_ns))

    @property
    def name(self) -> str:
        return self.place.rpartition("/")[2]


def given_shards(source: Path | str) -> list[GivenShard]:
    """Return the shards of a folder or URL. Compressed ones are rejected, because they allow no random access."""
    found = _at_url(source) if isinstance(source, str) else _in_folder(source)
    if packed := [one.place for one in found if one.name.endswith(PACKED)]:
        raise UserError(f"{packed[0]} is compressed, and no image in it can be found alone: unpack it to a .tar.")
    return [one for one in found if one.name.endswith(".tar")]


def _in_folder(folder: Path) -> list[GivenShard]:
    shards = [entry for entry in sorted(folder.iterdir()) if entry.name.endswith((".tar", *PACKED)) and entry.is_file()]
    for entry in shards:
        if entry.suffix == ".tar":
            refuse_odd_name(entry)
    return [GivenShard.at(entry) for entry in shards]


def _at_url(url: str) -> list[GivenShard]:
    """Return the shards directly below a URL, as in a folder."""
    listing = list_url(url)
    if listing is None or listing.kind != "folder":
        raise UserError(f"{url} is no folder: name one with webdataset shards (*.tar).")
    found = [one for one in listing.files if one.name.count("/") == 1 and one.name.endswith((".tar", *PACKED))]
    if odd := [one.path for one in found if not is_address(one.path)]:
        raise UserError(f"{odd[0]} is no address that a corpus may keep: name the shards without archives or keys.")
    if not found and (tables := [one.path for one in listing.files if one.name.endswith(".parquet")]):
        raise UserError(f"{tables[0]} is Parquet, of which no image is read: make webdataset shards (*.tar) of such.")
    if not found:
        raise UserError(
            f"{url} has no webdataset shards (*.tar), and images in folders are packed from this machine: copy them "
            "here, or mount the store."
        )
    return sorted((GivenShard(one.path, one.size, one.version) for one in found), key=lambda one: one.place)


@contextmanager
def opened(shard: GivenShard, scratch: Path) -> Iterator[Path]:
    """Provide a shard as a local file within the context."""
    place = shard.place
    if not is_remote(place):
        yield Path(place)
        return
    # A file with this suffix is removed by the next build if this one is killed.
    with tempfile.NamedTemporaryFile(dir=scratch, prefix=".", suffix=SUFFIX) as copy, open_remote(place) as there:
        while chunk := there.read(CHUNK):
            copy.write(chunk)
        copy.flush()
        if shard.size and copy.tell() != shard.size:  # the shard changed, and its index would be wrong
            raise UserError(
                f"{place} has {copy.tell():,} bytes, and had {shard.size:,} when it was listed: build again when "
                "nobody writes there."
            )
        yield Path(copy.name)
