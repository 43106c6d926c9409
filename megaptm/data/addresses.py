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
from megaptm.errors import UserError, shown
from megaptm.storage import PROTOCOLS, write_atomically

ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://[^\x00-\x1f\x7f]+")
"""URL with a lower-case protocol, because libraries know no other."""


def addresses_name(split: str) -> str:
    """Return the file name for a split: `train` -> `train.addresses.jsonl`."""
    return f"{split}.addresses.jsonl"


def write_addresses(folder: Path, split: str, urls: Sequence[str]) -> str:
    """Write the URLs of a split's shards, in the order of its table; return the sha256 of the file."""
    content = "".join(json.dumps(url) + "\n" for url in urls).encode()
    write_atomically(folder / addresses_name(split), content)
    return hashlib.sha256(content).hexdigest()


def read_addresses(path: Path, table: Sequence[ShardInfo], place: str) -> dict[str, str]:
    """Return shard name -> URL. Raises `UserError` if the file does not match the table. `path` is a local copy of
    `place`."""
    try:
        urls = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError):
        raise UserError(f"{place} cannot be read: copy it again or rebuild the corpus.") from None
    for url in urls:
        if not isinstance(url, str) or not is_address(url):
            raise UserError(f"{place} has {shown(str(url))}, which is no address of a shard: rebuild the corpus.")
    if len(urls) != len(table):
        raise UserError(f"{place} has {len(urls):,} addresses of {len(table):,} shards: rebuild the corpus.")
    return {info.name: url for info, url in zip(table, urls, strict=True)}


def is_address(url: str) -> bool:
    """Whether a URL may be stored in a corpus as the location of a shard."""
    said = ADDRESS.fullmatch(url)
    return said is not None and said[1] in PROTOCOLS and "::" not in url and not has_credentials(url)
