"""File with the URLs of shards that a corpus does not copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from megaptm.data.shard_urls import read_shard_urls, shard_urls_name, write_shard_urls
from megaptm.data.table import ShardInfo
from megaptm.errors import UserError

ZERO = "0" * 64
TABLE = [ShardInfo(name="train-000000.tar", samples=1, tokens=1, bytes=1, size=1, sha256=ZERO, index_sha256=ZERO)]
URL = "s3://bucket/laion/00000.tar"
LOCATION = "s3://b/train.addresses.jsonl"


def test_urls_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / shard_urls_name("train")
    write_shard_urls(tmp_path, "train", [URL])
    assert read_shard_urls(path, TABLE, LOCATION) == {"train-000000.tar": URL}
    write_shard_urls(tmp_path, "train", [URL, URL])
    with pytest.raises(UserError, match=f"^{LOCATION} has 2 URLs for 1 shards"):
        read_shard_urls(path, TABLE, LOCATION)


@pytest.mark.parametrize(
    "line",
    [
        *('"file:///etc/passwd"', '"FILE:///etc/passwd"', '"zip://a::s3://b/c.zip"', '"zip:///etc/a.zip"', '"dir://a"'),
        *('"ssh://host/a.tar"', '"github://me:it@main/a.tar"', '"jupyter://host/a.tar"', '"smb://host/a.tar"'),
        *('"/etc/passwd"', "3", '"s3://key:secret@b/a.tar"', r'"s3://b/\n.tar"'),
    ],
)
def test_unsafe_url_is_rejected(line: str, tmp_path: Path) -> None:
    (tmp_path / "copy").write_text(line + "\n")
    with pytest.raises(UserError, match=f"^{LOCATION} has .*, which is not the URL of a shard"):
        read_shard_urls(tmp_path / "copy", TABLE, LOCATION)


def test_invalid_json_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("{\n")
    with pytest.raises(UserError, match=f"^{LOCATION} cannot be read"):
        read_shard_urls(tmp_path / "copy", TABLE, LOCATION)
