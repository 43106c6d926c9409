"""Local mirror of a corpus at a URL, or of one with shards at URLs. Metadata are fetched immediately, shards on
demand."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from megaptm import storage
from megaptm.data.manifest import MANIFEST, NoCorpusError, parse_manifest
from megaptm.data.shard_urls import read_shard_urls, shard_urls_name
from megaptm.data.table import ShardInfo, ShardTable, table_name
from megaptm.errors import UserError
from megaptm.storage import RemoteFileCache, write_atomically

THREADS = 4
"""Number of shards that one process downloads at a time."""


@dataclass(frozen=True)
class Mirror:
    """Local folder that mirrors a remote corpus."""

    url: str
    folder: Path
    cache: RemoteFileCache
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Name of a shard outside of the corpus folder -> its URL."""

    @classmethod
    def open(cls, url: str, cache: RemoteFileCache) -> Mirror:
        """Fetch the metadata of a corpus: manifest, shard tables, tokenizer."""
        url, manifest_url = url.rstrip("/"), storage.join_path(url, MANIFEST)
        if not storage.exists(manifest_url, cache.retry):
            raise NoCorpusError(f"{manifest_url} does not exist, so {url} is not a finished corpus: check the URL, or")
        storage.refuse_large_file(manifest_url, storage.file_size(manifest_url, cache.retry))
        content = storage.read_file(manifest_url, cache.retry)
        manifest = parse_manifest(content, manifest_url)
        mirror = cls(url, cache.folder / f"{url.rpartition('/')[2]}-{manifest['id'][:16]}", cache)
        for split, sums in manifest["splits"].items():
            mirror._fetch_metadata(table_name(split), sums["table_sha256"])
        addresses: dict[str, str] = {}
        for split, sha256 in manifest.get("addresses", {}).items():
            if split not in manifest["splits"]:
                raise UserError(
                    f"{manifest_url} has shard URLs for a split `{split}` that it lacks: build the corpus again."
                )
            path = mirror._fetch_metadata(name := shard_urls_name(split), sha256)
            table = ShardTable(mirror.folder / table_name(split), split)
            addresses |= read_shard_urls(path, table, storage.join_path(url, name))
        mirror = replace(mirror, addresses=addresses)
        mirror.fetch_tokenizer()
        write_atomically(mirror.folder / MANIFEST, content)  # last, like the manifest of the original
        return mirror

    def _fetch_metadata(self, name: str, sha256: str) -> Path:
        """Download a metadata file of a corpus unless it exists. An existing file with a wrong hash is fetched
        again."""
        path, source = self.folder / name, storage.join_path(self.url, name)
        if not self.cache.fetch(source, path, sha256=sha256) and storage.file_sha256(str(path)) != sha256:
            self.cache.discard(path)
            self.cache.fetch(source, path, sha256=sha256)
        return path

    def fetch_tokenizer(self, *, again: bool = False) -> None:
        """Download the tokenizer's files of a corpus. `again` replaces existing ones, for a wrong fingerprint."""
        source, folder = storage.join_path(self.url, "tokenizer"), self.folder / "tokenizer"
        for name, size in storage.list_files(source, self.cache.retry).items():
            if not name:  # some stores list the folder itself
                continue
            try:
                storage.validate_file_name(name)
            except ValueError as error:
                raise UserError(f"{source}: {error}: build the corpus again.") from None
            storage.refuse_large_file(storage.join_path(source, name), size)
            if again or not (folder / name).exists():
                storage.download(storage.join_path(source, name), folder / name, size=size, retry=self.cache.retry)

    def url_of(self, name: str) -> str:
        """Return the URL of a file of a remote corpus."""
        return self.addresses.get(name) or storage.join_path(self.url, name)

    def fetch(self, info: ShardInfo) -> bool:
        """Download a shard of a corpus and its index. Return whether both were fetched now, and thus hashed."""
        fetched = [
            self.cache.fetch(self.url_of(name), self.folder / name, sha256=sha256, size=size)
            for name, sha256, size in ((info.index_name, info.index_sha256, None), (info.name, info.sha256, info.size))
        ]
        return all(fetched)

    def discard(self, info: ShardInfo) -> None:
        self.cache.discard(self.folder / info.name, self.folder / info.index_name)

    def fetch_many(self, infos: Iterable[ShardInfo], *, wait: bool, only_index: bool = False) -> None:
        """Download several shards of a corpus in parallel. Without `wait` this happens in the background, and errors
        are ignored."""
        todo, errors = deque(infos), list[BaseException]()
        # A background fetch makes one attempt only: a thread that retries would keep the file locked without any
        # message.
        retry = self.cache.retry if wait else replace(self.cache.retry, seconds=0.0)
        mirror = replace(self, cache=replace(self.cache, retry=retry))

        def work() -> None:
            while not errors:
                try:
                    info = todo.popleft()
                except IndexError:
                    return
                try:
                    mirror.fetch_index(info) if only_index else mirror.fetch(info)
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=work, daemon=True, name="megaptm-fetch") for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads if wait else ():
            thread.join()
        if wait and errors:
            raise errors[0]

    def fetch_index(self, info: ShardInfo) -> None:
        """Download only the index of a shard."""
        name = info.index_name
        self.cache.fetch(storage.join_path(self.url, name), self.folder / name, sha256=info.index_sha256)
