"""Mixes of groups: parts of a corpus by quality and domain, with epochs."""

import math
import pickle

import numpy as np
import pytest

from megaptm.batch_schedule import BatchSchedule
from megaptm.data import Corpus, open_mix
from megaptm.data.mix import BLOCK, ReadCursors
from megaptm.errors import UserError
from megaptm.mixture import parse_mix_value
from tests.data.corpora import equal_samples, tiny_corpus, tiny_special

SPECIAL = tiny_special()
GROUPS = {
    "quality": [0.0, 0.5, 1.0],
    "domains": ["books", "web"],
    "shards": {"train": [1, 2, 1, 2], "validation": [1, 0, 0, 0]},
}
"""Shard 0: books below 0.5; 1 and 2: better books; 3: web below 0.5; 4 and 5: better web."""


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grouped") / "web"
    tiny_corpus(folder, documents=120, shards=6, seed=3, groups=GROUPS, validation=20)
    return str(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "plain"
    tiny_corpus(folder, documents=60, seed=1)
    return str(folder)


def opened(mix, objective="causal-lm", sequence=32, **options):
    return open_mix(mix, **{"objective": objective, "sequence": sequence, "seed": 0, "special": SPECIAL, **options})


@pytest.mark.parametrize(
    ("part", "shards"),
    [
        ({"quality": [0.5, 1.0]}, [1, 2, 4, 5]),
        ({"quality": [0, 1]}, [0, 1, 2, 3, 4, 5]),
        ({"domains": ["web"]}, [3, 4, 5]),
        ({"quality": [0.0, 0.5], "domains": ["web", "books"]}, [0, 3]),
    ],
)
@pytest.mark.parametrize("objective", ["causal-lm", "masked-lm-next-sentence"])
def test_a_part_reads_the_documents_of_its_groups(grouped, part, shards, objective):
    """In an epoch, each token of the groups is read, and none of other groups."""
    mix = opened({grouped: {"weight": 1, **part}}, objective)
    table, corpus = Corpus.open(grouped).split("train").shards, Corpus.open(grouped)
    documents = [corpus.open_shard(table[shard]) for shard in shards]
    expected = {tuple(shard.tokens(number)[:5].tolist()) for shard in documents for number in range(len(shard))}
    [order] = mix.orders
    names = {order.shards.info(number).name for number in range(len(order.shards))}
    assert names == {table[shard].name for shard in shards}
    tables = [order._window((0, window)) for window in range(len(order._epoch(0)))]
    read = {
        tuple(order.shards.get(int(shard)).tokens(int(document))[:5].tolist())
        for window in tables
        for shard, document in zip(window.shard, window.document, strict=True)
    }
    assert read == expected


def test_parts_of_a_corpus_have_exact_shares(grouped, plain):
    mix = opened({grouped: [{"weight": 3, "quality": [0.5, 1]}, {"weight": 1, "quality": [0, 0.5]}], plain: 4})
    tokens = [int(order.shards.table_column("tokens").sum()) / order.per_epoch for order in mix.orders]
    assert np.array(mix.quotas) * tokens / np.dot(mix.quotas, tokens) == pytest.approx([3 / 8, 1 / 8, 4 / 8], abs=1e-4)
    assert [name.removeprefix(grouped) for name in mix.names[:2]] == [" (quality 0.5 to 1)", " (quality 0 to 0.5)"]
    assert len({source.key for source in mix.sources}) == 3
    copy = pickle.loads(pickle.dumps(mix))
    assert all(equal_samples(copy.sample(index), mix.sample(index)) for index in (0, 7, BLOCK + 3))


def test_a_table_of_a_weight_is_the_weight(grouped):
    table, number = opened({grouped: {"weight": 2}}), opened({grouped: 2})
    assert all(equal_samples(table.sample(index), number.sample(index)) for index in range(20))


def test_size_exponent_counts_documents_of_the_groups(grouped, plain):
    mix = opened({grouped: {"weight": 1, "domains": ["web"]}, plain: 1}, size_exponent=1.0)
    documents = [int(order.shards.table_column("samples").sum()) for order in mix.orders]
    assert documents == [60, 60]
    read = [quota / order.per_epoch for quota, order in zip(mix.quotas, mix.orders, strict=True)]
    assert read[0] == pytest.approx(read[1], rel=1e-3)


@pytest.mark.parametrize("objective", ["causal-lm", "masked-lm-next-sentence"])
def test_a_corpus_ends_after_max_epochs(grouped, plain, objective):
    """The other corpora take its share, and positions by index equal those counted one by one."""
    mix = opened({grouped: {"weight": 3, "max_epochs": 1.5}, plain: 1}, objective)
    limit = int(1.5 * mix.orders[0].per_epoch)
    read = np.zeros(2, dtype=int)
    for index in range(4 * limit):
        assert [*mix.cursors(index).values()] == read.tolist()
        position = mix.locate(index)
        per_epoch = mix.orders[position.source].per_epoch
        assert position.epoch * per_epoch + position.position == read[position.source]
        read[position.source] += 1
    assert read[0] == limit
    assert (len(mix.phases), mix.phases[1].quotas, mix.end) == (2, [0, BLOCK], math.inf)
    assert mix.phases[1].first > max(index for index in range(4 * limit) if mix.locate(index).source == 0)


def test_fresh_samples_of_limited_corpora(grouped, plain):
    mix = opened({grouped: {"weight": 30, "max_epochs": 1}, plain: 1})
    fresh = mix.samples_in(1)
    epochs = [mix.locate(index).epoch for index in range(fresh + 1)]
    assert (max(epochs[:fresh]), epochs[fresh]) == (0, 1)
    assert mix.locate(fresh).source == 1


def test_a_mix_of_limited_corpora_ends(grouped, plain):
    mix = opened({grouped: {"weight": 3, "max_epochs": 1}, plain: {"weight": 1, "max_epochs": 2}})
    assert mix.end == mix.orders[0].per_epoch + 2 * mix.orders[1].per_epoch
    assert mix.locate(int(mix.end) - 1).epoch == 1
    assert [*mix.cursors(int(mix.end)).values()] == [mix.orders[0].per_epoch, 2 * mix.orders[1].per_epoch]
    with pytest.raises(UserError, match=r"data\.mix has 485 samples: raise max_epochs, or add corpora"):
        mix.sample(int(mix.end))
    assert mix.samples_in(3) == mix.end


def test_max_epochs_with_shares_that_change(grouped, plain):
    """Shares of tasks change at steps, corpora end between them, and no batch has samples of two tasks."""
    tasks = {
        "masked-lm": {"share": {0: 1.0, 100: 0.5}},
        "whole-words": {"task": "masked-lm-whole-word", "share": {0: 1.0, 100: 2.0}},
    }
    schedule = BatchSchedule(final_size=8)
    mix = opened({grouped: {"weight": 1, "max_epochs": 1}, plain: 1}, tasks, schedule=schedule)
    read = np.zeros(4, dtype=int)
    for index in range(1600):
        read[mix.locate(index).source] += 1
        assert [*mix.cursors(index + 1).values()] == read.tolist()
    limits = [order.per_epoch for order in mix.orders]
    assert (read[0], read[2]) == (limits[0], limits[2])
    assert [phase.step for phase in mix.phases] == sorted(phase.step for phase in mix.phases)
    assert len(mix.phases) == 4


def test_epochs_of_an_earlier_config_count(grouped, plain):
    """A mix that continues another one reads only the rest of max_epochs."""
    before = opened({grouped: 1, plain: 1})
    read = before.samples_read(100)
    mix = opened({grouped: {"weight": 1, "max_epochs": 1}, plain: 1}, start=ReadCursors(10, 100, read))
    [number, per_epoch] = read[mix.sources[0].key]
    assert sum(mix.locate(index).source == 0 for index in range(100, 1500)) == per_epoch - number


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"weight": 1, "quality": [0.4, 1.0]}, r"must be a range of two edges of its buckets, which are 0, 0\.5, 1"),
        ({"weight": 1, "domains": ["wep"]}, r"has no domain wep; did you mean web\?"),
        ([{"weight": 1}, {"weight": 1, "quality": [0.5, 1]}], "documents in common"),
        ([{"weight": 1}, {"weight": 2}], "two tables of the same groups: add their weights"),
        ({"quality": [0.5, 1]}, "must have a weight"),
        ({"weight": 1, "qualty": [0.5, 1]}, "unknown key qualty"),
        ({"weight": 1, "quality": [1, 0.5]}, r"not a range of two numbers, as \[0\.5, 1\.0\]"),
        ({"weight": 1, "max_epochs": 0}, "max_epochs that is not a number above 0"),
    ],
)
def test_invalid_parts_are_rejected(grouped, value, message):
    with pytest.raises(UserError, match=message):
        opened({grouped: value})


def test_corpora_without_groups_are_rejected(plain):
    with pytest.raises(UserError, match=r"was built without groups, .* \(quality 0 to 1\): build it with the key"):
        opened({plain: {"weight": 1, "quality": [0, 1]}})


def test_groups_without_validation_are_rejected(grouped):
    with pytest.raises(UserError, match=r"\(web\) has no documents in its split `validation`"):
        opened({grouped: {"weight": 1, "domains": ["web"]}}, split="validation")
    opened({grouped: {"weight": 1, "domains": ["books"]}}, split="validation")


def test_max_epochs_of_no_sample_are_rejected(plain):
    with pytest.raises(UserError, match=r"max_epochs \(1e-09\) of .* is less than one of its [0-9,]+ samples"):
        opened({plain: {"weight": 1, "max_epochs": 1e-9}})


def test_lanes_have_no_max_epochs(plain):
    with pytest.raises(UserError, match="continue from batch to batch, so that no corpus can end: remove max_epochs"):
        opened({plain: {"weight": 1, "max_epochs": 1}}, "continued-causal-lm", document_mask=False, lanes=2)


@pytest.mark.parametrize("value", [1, 0.5, {"weight": 1, "quality": [0, 1]}, [{"weight": 1, "domains": ["a"]}]])
def test_valid_values_are_parsed(value):
    assert all(part.weight > 0 for part in parse_mix_value(value))


def test_a_ramp_moves_the_parts_of_a_corpus_together(grouped, plain):
    """The initial weight of a corpus is divided among its parts as the final one; ramps and max_epochs combine."""
    parts = [{"weight": 3, "quality": [0.5, 1]}, {"weight": 1, "quality": [0, 0.5], "max_epochs": 1}]
    schedule = BatchSchedule(final_size=2)
    mix = opened({grouped: parts, plain: 4}, schedule=schedule, mix_ramp=({plain: 1}, (100, 300)))
    tokens = [int(order.shards.table_column("tokens").sum()) / order.per_epoch for order in mix.orders]
    assert mix.phases[0].quotas == [0, 0, BLOCK]
    ramped = next(phase for phase in mix.phases if phase.step == 200)
    weights = np.array(ramped.quotas) * tokens
    assert weights[0] / weights[1] == pytest.approx(3, rel=0.01)
    assert mix.quotas[1] == 0
    read = np.zeros(3, dtype=int)
    for index in range(3000):
        read[mix.locate(index).source] += 1
        assert [*mix.cursors(index + 1).values()] == read.tolist()
    assert read[1] == mix.orders[1].per_epoch


def test_weights_beyond_floating_point_numbers_are_rejected():
    with pytest.raises(ValueError, match="must have a weight, a number above 0"):
        parse_mix_value({"weight": 10**400})
