"""What `corpus inspect` says of a corpus."""

from types import SimpleNamespace

import numpy as np

from data_pipeline.inspection import plural, shown
from megaptm.batch import IGNORED, BatchSpec, fields


def test_what_an_objective_of_ones_own_asks_is_shown_by_its_name():
    batch = BatchSpec({"": 4}, fields((4,), "tokens") | fields((), "is_low"))
    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
    told = [shown({"tokens": np.arange(4), "is_low": np.array(low)}, batch, tokenizer).plain for low in (1, IGNORED)]
    assert told == ["0 1 2 3\n\nis_low: 1", "0 1 2 3"]


def test_one_thing_is_no_plural():
    assert [plural(count, "shard") for count in (0, 1, 2000)] == ["0 shards", "1 shard", "2,000 shards"]
