"""Mixes: exact shares, nothing but the sample's number matters, and what cannot be mixed is refused."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.batch_schedule import BatchSchedule
from megaptm.data import open_mix
from megaptm.data.mix import BLOCK
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, SpecialTokens
from megaptm.objectives.unified import TextBeforeRegions
from tests.data.corpora import tiny_corpus, tiny_special

SPECIAL = tiny_special()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("mix")
    tiny_corpus(root / "a", documents=60, seed=1, parts=True)
    tiny_corpus(root / "b", documents=30, seed=2, lengths=(5, 40), parts=True)
    return [str(root / "a"), str(root / "b")]


def opened(mix, objective="causal-lm", sequence=32, **options):
    return open_mix(mix, **{"objective": objective, "sequence": sequence, "seed": 0, "special": SPECIAL, **options})


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[field], second[field]) for field in first)


# Similar words come from a file of the tokenizer's: tests/objectives/test_ngrams_and_spans.py. Images are those of a
# corpus of images: tests/objectives/test_images.py.
@pytest.mark.parametrize(
    "objective",
    [
        name
        for name, task in OBJECTIVES.items()
        if "similar-words" not in name
        and task.unit != "pairs"
        and name != "bidirectional-lm"
        and not task.blobs
        # Those have places for a hundred regions: tests/objectives/test_unified.py.
        and not isinstance(task, TextBeforeRegions)
    ],
)
@pytest.mark.parametrize("document_mask", [True, False])
def test_samples_have_the_promised_shapes_and_depend_on_their_number_alone(folders, objective, document_mask):
    weights = {folders[0]: 0.7, folders[1]: 0.3}
    if document_mask and OBJECTIVES[objective].unit == "lane":
        pytest.skip("what is remembered is of any document")
    mix = opened(weights, objective, document_mask=document_mask)
    numbers = np.random.default_rng(0).integers(0, 3 * BLOCK, 20).tolist()
    for number in numbers:
        sample = mix.sample(number)
        mix.batch.check(sample, maker=objective)
        assert same(sample, opened(weights, objective, document_mask=document_mask).sample(number))
    copy = pickle.loads(pickle.dumps(mix))
    assert all(same(copy.sample(number), mix.sample(number)) for number in numbers)


def test_shares_are_exact_in_every_block(folders):
    mix = opened({folders[0]: 3, folders[1]: 1}, "masked-lm")
    per_sample = [order.corpus.split("train").tokens / order.per_epoch for order in mix.orders]
    for block in (0, 5):
        sources = np.array([mix.locate(number).source for number in range(block * BLOCK, (block + 1) * BLOCK)])
        tokens = np.bincount(sources) * per_sample
        assert tokens[0] / tokens.sum() == pytest.approx(0.75, abs=1 / BLOCK)
    # And shuffled: a batch of a few hundred is near the shares too.
    assert np.bincount(sources[:500])[0] / 500 == pytest.approx(np.mean(sources == 0), abs=0.08)


def test_weights_count_tokens_where_samples_differ_in_length(folders):
    mix = opened(dict.fromkeys(folders, 1), "masked-lm-next-sentence")
    tokens = [order.corpus.split("train").tokens / order.per_epoch for order in mix.orders]
    assert tokens[0] > 1.1 * tokens[1]
    assert mix.quotas[0] * tokens[0] == pytest.approx(mix.quotas[1] * tokens[1], rel=0.001)


@pytest.mark.parametrize(("exponent", "limit", "ratio"), [(1.0, None, 2), (1.0, 40, 40 / 30), (0.3, None, 2**0.3)])
@pytest.mark.parametrize("objective", ["causal-lm", "masked-lm-next-sentence"])
def test_documents_are_drawn_by_the_size_of_their_corpora(folders, objective, exponent, limit, ratio):
    """T5's examples-proportional mixing, its artificial limit, and mT5's exponent; weights come on top."""
    mix = opened(
        {folders[0]: 3, folders[1]: 1},
        objective,
        size_exponent=exponent,
        size_limits=limit and dict.fromkeys(folders, limit),
    )
    assert [order.corpus.split("train").samples for order in mix.orders] == [60, 30]
    documents = [
        quota * order.corpus.split("train").samples / order.per_epoch
        for quota, order in zip(mix.quotas, mix.orders, strict=True)
    ]
    assert documents[0] / documents[1] == pytest.approx(3 * ratio, rel=1e-3)


def test_a_corpus_may_have_a_limit_of_its_own(folders):
    """As T5 has for C4 and for two pairs of languages (arXiv:1910.10683, 3.7)."""
    mix = opened(dict.fromkeys(folders, 1), size_exponent=1.0, size_limits={folders[1]: 20})
    documents = [
        quota * order.corpus.split("train").samples / order.per_epoch
        for quota, order in zip(mix.quotas, mix.orders, strict=True)
    ]
    assert documents[0] / documents[1] == pytest.approx(60 / 20, rel=1e-3)


def test_each_corpus_is_read_in_its_own_order_without_gaps(folders):
    mix = opened({folders[0]: 0.7, folders[1]: 0.3})
    cursors = [0, 0]
    for number in range(BLOCK - 500, BLOCK + 500):
        if number == BLOCK - 500:
            cursors = list(mix.cursors(number).values())
        assert list(mix.cursors(number).values()) == cursors
        place = mix.locate(number)
        assert (place.epoch, place.position) == divmod(cursors[place.source], mix.orders[place.source].per_epoch)
        cursors[place.source] += 1


def test_fresh_samples_end_where_the_first_epoch_does(folders):
    mix = opened({folders[0]: 0.5, folders[1]: 0.5})
    epochs = [mix.locate(number).epoch for number in range(mix.fresh_samples + 1)]
    assert max(epochs[:-1]) == 0
    assert epochs[-1] == 1


def test_a_million_samples_hold_each_share_of_tokens_to_a_thousandth(folders, tmp_path):
    tiny_corpus(tmp_path / "c", seed=3, lengths=(2, 9))
    weights = {folders[0]: 0.795, folders[1]: 0.2, str(tmp_path / "c"): 0.005}
    for objective in ("causal-lm", "masked-lm-next-sentence"):
        mix = opened(weights, objective)
        tokens = [
            samples * order.corpus.split("train").tokens / order.per_epoch
            for samples, order in zip(mix.cursors(10**6).values(), mix.orders, strict=True)
        ]
        assert np.array(tokens) / sum(tokens) == pytest.approx(list(weights.values()), rel=0.001)


def test_so_many_epochs_end_where_a_corpus_begins_again(folders):
    mix = opened({folders[0]: 0.5, folders[1]: 0.5})
    for epochs in (1, 3):
        last = mix.samples_in(epochs)
        assert max(mix.epochs_started(last).values()) == epochs
        assert max(mix.epochs_started(last + 1).values()) == epochs + 1
        assert mix.locate(last).epoch == epochs
    assert set(mix.epochs_started(0).values()) == {0}


def test_noise_differs_from_epoch_to_epoch(tmp_path):
    # One document a row, one row: whatever differs between the epochs is noise.
    tiny_corpus(tmp_path, documents=1, shards=1, lengths=(30, 30))
    mix = opened({str(tmp_path): 1}, "masked-lm", sequence=32)
    assert mix.orders[0].per_epoch == 1
    first, second = mix.sample(0), mix.sample(1)
    assert not np.array_equal(first["masked_positions"], second["masked_positions"])
    restored = [sample["tokens"].copy() for sample in (first, second)]
    for tokens, sample in zip(restored, (first, second), strict=True):
        real = sample["labels"] != IGNORED
        tokens[sample["masked_positions"][real]] = sample["labels"][real]
    assert np.array_equal(*restored)


@pytest.mark.parametrize(
    "objective", ["masked-lm", {"masked-lm": {"share": 1}, "more": {"task": "masked-lm", "rate": 0.3, "share": 2}}]
)
def test_static_masks_come_again_after_as_many_epochs_as_there_are_copies(tmp_path, objective):
    tiny_corpus(tmp_path, documents=40, shards=2, lengths=(5, 60))
    mix = opened({str(tmp_path): 1}, objective, sequence=32, dupe_factor=2)
    rows = {}
    for number in range(5 * sum(order.per_epoch for order in mix.orders)):
        place = mix.locate(number)
        if place.epoch < 4:
            sample = mix.sample(number)
            rows[place] = [sample[name].tolist() for name in ("tokens", "masked_positions", "labels")]

    def pairs(epochs: int) -> list[bool]:
        later = {place: replace(place, epoch=place.epoch + epochs) for place in rows}
        return [rows[place] == rows[other] for place, other in later.items() if other in rows]

    assert pairs(2)
    assert all(pairs(2))
    assert not any(pairs(1))


def test_packed_masked_rows_use_every_token_once(tmp_path):
    tiny_corpus(tmp_path, documents=40, vocabulary=60_000, lengths=(1, 70))
    special = tiny_special(60_000)
    mix = opened({str(tmp_path): 1}, "masked-lm", special=special)
    order = mix.orders[0]
    raw = sorted(t for n in range(order.per_epoch) for part in order.piece(0, n) for t in part.tokens.tolist())
    packed = []
    for number in range(order.per_epoch):
        sample = mix.sample(number)
        real = sample["labels"] != IGNORED
        sample["tokens"][sample["masked_positions"][real]] = sample["labels"][real]
        packed += sample["tokens"][~special.is_special[sample["tokens"]]].tolist()
    assert sorted(packed) == raw
    assert order.corpus.split("train").tokens - len(raw) < 30


def test_a_corpus_named_twice_is_refused(folders, tmp_path):
    tiny_corpus(tmp_path / "copy", documents=60, seed=1, parts=True)
    with pytest.raises(UserError, match=r"data\.mix has one corpus twice, as"):
        opened({folders[0]: 1, str(tmp_path / "copy"): 1})


def test_corpora_of_two_tokenizers_are_refused(folders, tmp_path):
    tiny_corpus(tmp_path / "other", fingerprint="another")
    with pytest.raises(UserError, match=r"/a and .*/other were made with different tokenizers"):
        opened({folders[0]: 1, str(tmp_path / "other"): 1})


def test_ids_beyond_the_vocabulary_in_use_are_refused(folders):
    with pytest.raises(UserError, match="1,000 ids, more than the 50 of the tokenizer in use"):
        opened({folders[0]: 1}, special=SpecialTokens(size=50, end=0))


@pytest.mark.parametrize("weights", [(1, 0), (1, -1), (1, float("nan")), (1, 1e-9)])
def test_weights_that_cannot_be_honored_are_refused(folders, weights):
    with pytest.raises(UserError, match=r"data\.mix: .*weight"):
        opened(dict(zip(folders, weights, strict=True)))


def test_a_share_that_cannot_be_honored_is_named(folders):
    shares = {"few": {"task": "masked-lm", "share": 1e-9}, "many": {"task": "masked-lm", "share": 1}}
    with pytest.raises(UserError, match=r"is less than one sample in 100,000: raise it, or remove it\."):
        opened({folders[0]: 1}, shares)


def test_an_empty_mix_and_an_empty_corpus_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.mix is empty"):
        opened({})
    tiny_corpus(tmp_path, documents=0)
    with pytest.raises(UserError, match="no documents in its split `train`"):
        opened({str(tmp_path): 1})


def test_a_truncated_shard_is_refused_when_the_mix_is_opened(tmp_path):
    tiny_corpus(tmp_path)
    path = tmp_path / "train-000002.tar"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"train-000002\.tar.*truncated"):
        opened({str(tmp_path): 1})


def test_a_flipped_byte_is_refused_when_its_shard_is_first_touched(tmp_path):
    tiny_corpus(tmp_path)
    path = tmp_path / "train-000001.tar"
    content = bytearray(path.read_bytes())
    content[1000] ^= 4
    path.write_bytes(content)
    mix = opened({str(tmp_path): 1}, window=1)
    with pytest.raises(UserError, match=r"train-000001\.tar is damaged.*copy the shard again"):
        [mix.sample(number) for number in range(mix.orders[0].per_epoch)]
    opened({str(tmp_path): 1}, verify="size").sample(0)


def test_a_document_longer_than_any_row_is_read_in_rows(tmp_path):
    tiny_corpus(tmp_path, documents=1, shards=1, lengths=(5000, 5000))
    mix = opened({str(tmp_path): 1})
    assert mix.orders[0].per_epoch == 5000 // 32
    assert len({mix.sample(n)["tokens"].tobytes() for n in range(mix.fresh_samples)}) == 5000 // 32


TWO_TASKS = {
    "few": {"task": "masked-lm", "share": {0: 1.0, 3: 0.25}},
    "many": {"task": "masked-lm", "rate": 0.3, "share": {0: 0.0, 3: 0.75}},
}


def test_shares_of_tasks_are_exact_and_change_at_their_step(folders):
    schedule = BatchSchedule(1000)
    mix = opened({folders[0]: 3, folders[1]: 1}, TWO_TASKS, schedule=schedule)
    tasks = np.array([mix.sources[mix.locate(number).source].task.label for number in range(3000 + BLOCK)])
    assert set(tasks[:3000]) == {"few"}
    assert (tasks[3000:] == "many").mean() == pytest.approx(0.75, abs=1e-4)
    # A task reads corpora in their weights, in tokens.
    names = [mix.sources[mix.locate(number).source].name for number in range(3000, 3000 + BLOCK)]
    alone = opened({folders[0]: 3, folders[1]: 1}, "masked-lm")
    share = sum(name.startswith(folders[0]) for name in names) / BLOCK
    assert share == pytest.approx(alone.quotas[0] / BLOCK, abs=1e-3)
    # What is held out is measured with the last shares.
    held = opened({folders[0]: 3}, TWO_TASKS)
    assert {held.sources[held.locate(number).source].task.label for number in range(100)} == {"few", "many"}
    # Those of the run: not of a step that it does not reach.
    held = opened({folders[0]: 3}, TWO_TASKS, last_step=2)
    assert {held.sources[held.locate(number).source].task.label for number in range(100)} == {"few"}


def test_each_source_goes_through_its_epochs_across_a_change_of_shares(folders):
    mix = opened(dict.fromkeys(folders, 1), TWO_TASKS, schedule=BatchSchedule(40))
    counted = dict.fromkeys(mix.names, 0)
    for number in range(400):
        assert mix.cursors(number) == counted
        place = mix.locate(number)
        name = mix.names[place.source]
        assert (place.epoch, place.position) == divmod(counted[name], mix.orders[place.source].per_epoch)
        counted[name] += 1
    last = mix.samples_in(1)
    assert max(mix.epochs_started(last).values()) == 1 < max(mix.epochs_started(last + 1).values())


def test_tasks_read_one_text_in_orders_of_their_own(folders):
    mix = opened({folders[0]: 1}, TWO_TASKS, schedule=BatchSchedule(1))
    first, second = (order.piece(0, 0)[0].tokens for order in mix.orders)
    assert not np.array_equal(first[:8], second[:8])
