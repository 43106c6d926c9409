"""Lanes: the samples at one index of consecutive batches continue through one text."""

import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from megaptm.data import open_mix
from megaptm.data.lane_mix import assign_lanes
from megaptm.errors import UserError
from tests.data.corpora import equal_samples, tiny_corpus, tiny_special

LANES, LENGTH = 6, 16


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lanes")
    tiny_corpus(folder / "one", documents=60, seed=1)
    tiny_corpus(folder / "two", documents=60, seed=2)
    return str(folder / "one"), str(folder / "two")


def open_lanes(weights, lanes=LANES):
    options = {"objective": "continued-causal-lm", "sequence": LENGTH, "seed": 3, "special": tiny_special()}
    return open_mix(weights, **options, document_mask=False, lanes=lanes)


@pytest.mark.parametrize("num_corpora", [1, 2])
def test_lanes_continue_until_an_epoch_ends(corpora, num_corpora):
    """Each lane reads one corpus, and its state is reset at the start of an epoch only."""
    mix = open_lanes(dict.fromkeys(corpora[:num_corpora], 1.0))
    per_lane = mix.orders[0].per_epoch // mix.orders[0].lanes
    assert per_lane > 3
    for lane in range(LANES):
        source = mix.locate(lane).source
        steps = mix.orders[source].per_epoch // mix.orders[source].lanes
        samples = [mix.sample(step * LANES + lane) for step in range(steps + 2)]
        assert [int(sample["reset_state"]) for sample in samples] == [1, *[0] * (steps - 1), 1, 0]
        for before, after in pairwise(samples):
            if not after["reset_state"]:
                assert before["labels"][-1] == after["tokens"][0]
            assert (before["labels"][:-1] == before["tokens"][1:]).all()
        assert {mix.locate(step * LANES + lane).source for step in range(2 * steps)} == {source}


def test_an_epoch_reads_each_sequence_once(corpora):
    mix = open_lanes({corpora[0]: 1.0})
    order = mix.orders[0]
    stream = open_mix(
        {corpora[0]: 1.0},
        objective="causal-lm",
        sequence=LENGTH,
        seed=3,
        special=tiny_special(),
        document_mask=False,
        window=1,
    )
    expected = Counter(stream.sample(index)["tokens"].tobytes() for index in range(stream.orders[0].per_epoch))
    for epoch in (0, 1):
        indices = range(epoch * order.per_epoch, (epoch + 1) * order.per_epoch)
        sequences = Counter(mix.sample(index)["tokens"].tobytes() for index in indices)
        assert max(sequences.values()) == 1
        assert len(sequences) == order.per_epoch
        if epoch == 0:
            assert not sequences - expected, "not the sequences of the text, in another order"
            assert len(expected) - len(sequences) < LANES
    assert mix.fresh_samples == order.per_epoch


def test_a_sample_depends_on_its_index_only(corpora):
    weights = {corpora[0]: 2.0, corpora[1]: 1.0}
    mix, copy = open_lanes(weights), pickle.loads(pickle.dumps(open_lanes(weights)))
    for index in np.random.default_rng(0).integers(0, 5 * mix.fresh_samples, 30).tolist():
        assert equal_samples(mix.sample(index), copy.sample(index))


@pytest.mark.parametrize("num_samples", [0, 1, 7, 100])
def test_cursors_count_samples_of_each_corpus(corpora, num_samples):
    mix = open_lanes({corpora[0]: 2.0, corpora[1]: 1.0})
    assert sorted(mix.cursors(LANES).values()) == [2, 4]
    counts = Counter(mix.names[mix.locate(index).source] for index in range(num_samples))
    assert mix.cursors(num_samples) == {name: counts[name] for name in mix.names}


@pytest.mark.parametrize(
    ("weights", "lanes", "assigned"),
    [
        ((1, 1), 6, [3, 3]),
        ((2, 1), 6, [4, 2]),
        ((1000, 1), 6, [5, 1]),
        ((5, 1, 1, 1), 4, [1, 1, 1, 1]),
        ((3, 2), 4, [2, 2]),
    ],
)
def test_lanes_are_assigned_by_weight(weights, lanes, assigned):
    """Each corpus has at least one lane."""
    lanes_by_corpus = assign_lanes({str(index): weight for index, weight in enumerate(weights)}, lanes)
    assert [*lanes_by_corpus.values()] == assigned


def test_more_corpora_than_lanes_are_rejected(corpora):
    with pytest.raises(
        UserError,
        match=r"data\.mix has 2 corpora, but each of the 1 sequences of a batch continues through one corpus:",
    ):
        open_lanes(dict.fromkeys(corpora, 1.0), lanes=1)


def test_more_lanes_than_sequences_are_rejected(corpora):
    with pytest.raises(UserError, match=r"lower train\.batch"):
        open_lanes({corpora[0]: 1.0}, lanes=10_000)
