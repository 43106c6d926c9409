"""The file of URLs of shards that stay elsewhere: what it may name, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from megaptm.data.addresses import addresses_name, read_addresses, write_addresses
from megaptm.data.table import ShardInfo
from megaptm.errors import UserError

ZERO = "0" * 64
TABLE = [ShardInfo(name="train-000000.tar", samples=1, tokens=1, bytes=1, size=1, sha256=ZERO, index_sha256=ZERO)]
URL = "s3://bucket/laion/00000.tar"


def test_shards_have_the_addresses_that_were_written(tmp_path: Path) -> None:
    write_addresses(tmp_path, "train", [URL])
    assert read_addresses(tmp_path, "train", TABLE) == {"train-000000.tar": URL}
    write_addresses(tmp_path, "train", [URL, URL])
    with pytest.raises(UserError, match="has 2 addresses of 1 shards"):
        read_addresses(tmp_path, "train", TABLE)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"file:///etc/passwd"', "which is no address of a shard"),
        ('"zip://a::s3://b/c.zip"', "which is no address of a shard"),
        ('"/etc/passwd"', "which is no address of a shard"),
        ('"s3://key:secret@b/a.tar"', "which is no address of a shard"),
        ("3", "which is no address of a shard"),
        ("{", "cannot be read"),
    ],
)
def test_a_place_that_no_corpus_may_name_is_refused(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / addresses_name("train")).write_text(line + "\n")
    with pytest.raises(UserError, match=said):
        read_addresses(tmp_path, "train", TABLE)
