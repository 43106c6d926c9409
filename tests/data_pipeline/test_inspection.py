"""What `corpus inspect` says of a corpus."""

from data_pipeline.inspection import plural


def test_one_thing_is_no_plural():
    assert [plural(count, "shard") for count in (0, 1, 2000)] == ["0 shards", "1 shard", "2,000 shards"]
