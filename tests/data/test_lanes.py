"""Rows that go on: each row of a batch reads one text on and on, whoever asks and wherever it begins to ask."""

import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from megaptm.data import open_mix
from megaptm.data.lane_mix import assign_lanes
from megaptm.errors import UserError
from tests.data.corpora import tiny_corpus, tiny_special

LANES, LENGTH = 6, 16


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    place = tmp_path_factory.mktemp("lanes")
    tiny_corpus(place / "one", documents=60, seed=1)
    tiny_corpus(place / "two", documents=60, seed=2)
    return str(place / "one"), str(place / "two")


def opened(mix, lanes=LANES):
    options = {"objective": "continued-causal-lm", "sequence": LENGTH, "seed": 3, "special": tiny_special()}
    return open_mix(mix, **options, document_mask=False, lanes=lanes)


def rows(mix, steps, lane, first=0):
    return [mix.sample(step * mix.lanes + lane) for step in range(first, first + steps)]


@pytest.mark.parametrize("number", [1, 2])
def test_each_row_goes_on_where_it_ended_and_begins_with_an_epoch(corpora, number):
    mix = opened(dict.fromkeys(corpora[:number], 1.0))
    per_lane = mix.orders[0].per_epoch // mix.orders[0].lanes
    assert per_lane > 3
    for lane in range(LANES):
        source = mix.locate(lane).source
        steps = mix.orders[source].per_epoch // mix.orders[source].lanes
        read = rows(mix, steps + 2, lane)
        assert [int(row["reset_state"]) for row in read] == [1, *[0] * (steps - 1), 1, 0]
        for before, after in pairwise(read):
            if not after["reset_state"]:
                assert before["labels"][-1] == after["tokens"][0]
            assert (before["labels"][:-1] == before["tokens"][1:]).all()
        assert {mix.locate(step * LANES + lane).source for step in range(2 * steps)} == {source}


def test_an_epoch_reads_each_row_of_the_text_once(corpora):
    mix = opened({corpora[0]: 1.0})
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
    whole = Counter(stream.sample(number)["tokens"].tobytes() for number in range(stream.orders[0].per_epoch))
    for epoch in (0, 1):
        numbers = range(epoch * order.per_epoch, (epoch + 1) * order.per_epoch)
        read = Counter(mix.sample(number)["tokens"].tobytes() for number in numbers)
        assert max(read.values()) == 1
        assert len(read) == order.per_epoch
        if epoch == 0:
            assert not read - whole, "the rows of the text laid end to end, in another order"
            assert len(whole) - len(read) < LANES
    assert mix.fresh_samples == order.per_epoch


def test_a_sample_depends_on_its_number_alone(corpora):
    weights = {corpora[0]: 2.0, corpora[1]: 1.0}
    mix, copy = opened(weights), pickle.loads(pickle.dumps(opened(weights)))
    for number in np.random.default_rng(0).integers(0, 5 * mix.fresh_samples, 30).tolist():
        one, other = mix.sample(number), copy.sample(number)
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_cursors_count_what_each_corpus_gave(corpora):
    mix = opened({corpora[0]: 2.0, corpora[1]: 1.0})
    assert sorted(mix.cursors(LANES).values()) == [2, 4]
    for number in (0, 1, 7, 100):
        found = Counter(mix.names[mix.locate(before).source] for before in range(number))
        assert mix.cursors(number) == {name: found[name] for name in mix.names}


@pytest.mark.parametrize(
    ("weights", "lanes", "dealt"),
    [
        ((1, 1), 6, [3, 3]),
        ((2, 1), 6, [4, 2]),
        ((1000, 1), 6, [5, 1]),
        ((5, 1, 1, 1), 4, [1, 1, 1, 1]),
        ((3, 2), 4, [2, 2]),
    ],
)
def test_rows_are_dealt_by_weight_and_each_corpus_has_one(weights, lanes, dealt):
    found = assign_lanes({str(number): weight for number, weight in enumerate(weights)}, lanes)
    assert [*found.values()] == dealt


def test_too_few_rows_and_too_many_corpora_are_refused(corpora):
    with pytest.raises(
        UserError,
        match=r"data\.mix has 2 corpora, but each of the 1 sequences of a batch continues through one corpus:",
    ):
        opened(dict.fromkeys(corpora, 1.0), lanes=1)
    with pytest.raises(UserError, match=r"lower train\.batch"):
        opened({corpora[0]: 1.0}, lanes=10_000)
