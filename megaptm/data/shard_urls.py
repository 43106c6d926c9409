"""URLs of shards that are outside of the corpus folder: `train.addresses.jsonl`, one per line, beside the shard
table."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from megaptm.credentials import has_credentials
from megaptm.data.table import ShardInfo
from megaptm.errors import UserError, quote_value
from megaptm.storage import PROTOCOLS, write_atomically

SHARD_URL = re.compile(r"([a-z][a-z0-9+.-]*)://[^\x00-\x1f\x7f]+")
"""URL of a shard, with a lower-case protocol, because libraries know no other."""


def shard_urls_name(split: str) -> str:
    """Return the name of the file with the URLs of a split's shards: `train` -> `train.addresses.jsonl`."""
    return f"{split}.addresses.jsonl"


def write_shard_urls(folder: Path, split: str, urls: Sequence[str]) -> str:
    """Write the URLs of a split's shards, in the order of its table; return the sha256 of the file."""
    content = "".join(json.dumps(url) + "\n" for url in urls).encode()
    write_atomically(folder / shard_urls_name(split), content)
    return hashlib.sha256(content).hexdigest()


def read_shard_urls(path: Path, table: Sequence[ShardInfo], url: str) -> dict[str, str]:
    """Read the URLs of a split's shards: shard name -> URL. Raises `UserError` if the file does not match the table.
    `path` is a local copy of the file at `url`."""
    try:
        urls = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError):
        raise UserError(f"{url} cannot be read: copy it again or build the corpus again.") from None
    for shard_url in urls:
        if not isinstance(shard_url, str) or not is_shard_url(shard_url):
            raise UserError(
                f"{url} has {quote_value(str(shard_url))}, which is not the URL of a shard: build the corpus again."
            )
    if len(urls) != len(table):
        raise UserError(f"{url} has {len(urls):,} URLs for {len(table):,} shards: build the corpus again.")
    return {info.name: shard_url for info, shard_url in zip(table, urls, strict=True)}


def is_shard_url(url: str) -> bool:
    """Whether a URL may be stored in a corpus as the location of a shard."""
    match = SHARD_URL.fullmatch(url)
    return match is not None and match[1] in PROTOCOLS and "::" not in url and not has_credentials(url)
