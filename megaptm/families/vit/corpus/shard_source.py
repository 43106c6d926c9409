"""Image shards that existed before the build, in a folder or at a URL: list them, and open one at a time.

A remote shard is copied to a temporary local file while it is read, and stays at its URL.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.sources.remote import list_url
from megaptm.data.shard_urls import is_shard_url
from megaptm.errors import UserError
from megaptm.families.vit.corpus.folders import require_utf8
from megaptm.storage import is_remote, open_remote
from megaptm.storage.atomic_file import SUFFIX

COMPRESSED_SUFFIXES = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2")
CHUNK = 4 << 20
"""Number of bytes of a remote shard copied at a time."""


@dataclass(frozen=True)
class ExistingShard:
    """Shard of images that existed before the build."""

    location: str
    """Path or URL of the shard."""
    size: int
    version: str
    """Version of the shard. A continued build compares it to detect a change."""

    @classmethod
    def at(cls, path: Path) -> ExistingShard:
        status = path.stat()
        return cls(str(path), status.st_size, str(status.st_mtime_ns))

    @property
    def name(self) -> str:
        return self.location.rpartition("/")[2]


def list_shards(source: Path | str) -> list[ExistingShard]:
    """Return the existing image shards of a folder or URL. Compressed shards are rejected, because they allow no random
    access."""
    shards = _list_url(source) if isinstance(source, str) else _list_folder(source)
    if packed := [shard.location for shard in shards if shard.name.endswith(COMPRESSED_SUFFIXES)]:
        raise UserError(f"{packed[0]} is compressed, which prevents random access: decompress it to a .tar.")
    return [shard for shard in shards if shard.name.endswith(".tar")]


def _list_folder(folder: Path) -> list[ExistingShard]:
    shards = [
        entry
        for entry in sorted(folder.iterdir())
        if entry.name.endswith((".tar", *COMPRESSED_SUFFIXES)) and entry.is_file()
    ]
    for entry in shards:
        if entry.suffix == ".tar":
            require_utf8(entry)
    return [ExistingShard.at(entry) for entry in shards]


def _list_url(url: str) -> list[ExistingShard]:
    """Return the shards directly below a URL, as in a folder."""
    listing = list_url(url)
    if listing is None or listing.kind != "folder":
        raise UserError(f"{url} is not a folder: name one with webdataset shards (*.tar).")
    shards = [
        shard
        for shard in listing.files
        if shard.name.count("/") == 1 and shard.name.endswith((".tar", *COMPRESSED_SUFFIXES))
    ]
    if invalid_urls := [shard.path for shard in shards if not is_shard_url(shard.path)]:
        raise UserError(f"{invalid_urls[0]} is not a URL that a corpus can store: use URLs without archives or keys.")
    if not shards and (tables := [shard.path for shard in listing.files if shard.name.endswith(".parquet")]):
        raise UserError(
            f"{tables[0]} is Parquet, which is not supported for images: convert it to webdataset shards (*.tar)."
        )
    if not shards:
        raise UserError(
            f"{url} has no webdataset shards (*.tar), and single images are read from local folders only: copy them "
            "to this machine, or mount the store."
        )
    return sorted(
        (ExistingShard(shard.path, shard.size, shard.version) for shard in shards), key=lambda shard: shard.location
    )


@contextmanager
def local_copy(shard: ExistingShard, scratch: Path) -> Iterator[Path]:
    """Provide an existing shard of images as a local file within the context."""
    location = shard.location
    if not is_remote(location):
        yield Path(location)
        return
    # A file with this suffix is removed by the next build if this one is killed.
    with (
        tempfile.NamedTemporaryFile(dir=scratch, prefix=".", suffix=SUFFIX) as copy,
        open_remote(location) as remote_file,
    ):
        while chunk := remote_file.read(CHUNK):
            copy.write(chunk)
        copy.flush()
        if shard.size and copy.tell() != shard.size:  # the shard changed, and its index would be wrong
            raise UserError(
                f"{location} has {copy.tell():,} bytes, but had {shard.size:,} when it was listed: build again when "
                "it no longer changes."
            )
        yield Path(copy.name)
