"""Mixes of corpora and tasks: exact shares, random access, and error messages."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.batch_schedule import BatchSchedule
from megaptm.data import open_mix
from megaptm.data.mix import BLOCK, ReadCursors
from megaptm.errors import UserError
from megaptm.families.unimo.unified import TextBeforeRegions
from megaptm.objectives import OBJECTIVES, SpecialTokens
from tests.data.corpora import equal_samples, tiny_corpus, tiny_special

SPECIAL = tiny_special()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("mix")
    tiny_corpus(root / "a", documents=60, seed=1, parts=True)
    tiny_corpus(root / "b", documents=30, seed=2, lengths=(5, 40), parts=True)
    return [str(root / "a"), str(root / "b")]


def opened(mix, objective="causal-lm", sequence=32, **options):
    return open_mix(mix, **{"objective": objective, "sequence": sequence, "seed": 0, "special": SPECIAL, **options})


# Similar words need a file of the tokenizer (tests/objectives/test_ngrams_and_spans.py), and images an image corpus
# (tests/objectives/test_images.py).
@pytest.mark.parametrize(
    "objective",
    [
        name
        for name, task in OBJECTIVES.items()
        if "similar-words" not in name
        and task.unit != "pairs"
        and name != "bidirectional-lm"
        and not task.blobs
        # A sequence of 32 is too short for a hundred regions: tests/objectives/test_unified.py.
        and not isinstance(task, TextBeforeRegions)
    ],
)
@pytest.mark.parametrize("document_mask", [True, False])
def test_samples_match_batch_spec_and_depend_on_index_only(folders, objective, document_mask):
    weights = {folders[0]: 0.7, folders[1]: 0.3}
    if document_mask and OBJECTIVES[objective].unit == "lane":
        pytest.skip("a recurrence cache spans documents")
    mix = opened(weights, objective, document_mask=document_mask)
    indices = np.random.default_rng(0).integers(0, 3 * BLOCK, 20).tolist()
    samples = {index: mix.sample(index) for index in indices}
    for sample in samples.values():
        mix.batch_spec.check(sample, maker=objective)
    copies = (pickle.loads(pickle.dumps(mix)), opened(weights, objective, document_mask=document_mask))
    for copy, order in zip(copies, (indices, indices[::-1]), strict=True):
        assert all(equal_samples(copy.sample(index), samples[index]) for index in order)


def test_shares_are_exact_in_each_block(folders):
    mix = opened({folders[0]: 3, folders[1]: 1}, "masked-lm")
    per_sample = [order.corpus.split("train").tokens / order.per_epoch for order in mix.orders]
    for block in (0, 5):
        sources = np.array([mix.locate(index).source for index in range(block * BLOCK, (block + 1) * BLOCK)])
        tokens = np.bincount(sources) * per_sample
        assert tokens[0] / tokens.sum() == pytest.approx(0.75, abs=1 / BLOCK)
    # Sources are shuffled, so the shares of a batch of a few hundred are similar.
    assert np.bincount(sources[:500])[0] / 500 == pytest.approx(np.mean(sources == 0), abs=0.08)


def test_weights_are_shares_of_tokens(folders):
    mix = opened(dict.fromkeys(folders, 1), "masked-lm-next-sentence")
    tokens = [order.corpus.split("train").tokens / order.per_epoch for order in mix.orders]
    assert tokens[0] > 1.1 * tokens[1]
    assert mix.quotas[0] * tokens[0] == pytest.approx(mix.quotas[1] * tokens[1], rel=0.001)


@pytest.mark.parametrize(("exponent", "limit", "ratio"), [(1.0, None, 2), (1.0, 40, 40 / 30), (0.3, None, 2**0.3)])
@pytest.mark.parametrize("objective", ["causal-lm", "masked-lm-next-sentence"])
def test_size_exponent_and_limit(folders, objective, exponent, limit, ratio):
    """T5's examples-proportional mixing with its artificial limit, and mT5's exponent, multiplied by the weights."""
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


def test_size_limit_of_one_corpus(folders):
    """T5 has other limits for C4 and for two pairs of languages (arXiv:1910.10683, section 3.7)."""
    mix = opened(dict.fromkeys(folders, 1), size_exponent=1.0, size_limits={folders[1]: 20})
    documents = [
        quota * order.corpus.split("train").samples / order.per_epoch
        for quota, order in zip(mix.quotas, mix.orders, strict=True)
    ]
    assert documents[0] / documents[1] == pytest.approx(60 / 20, rel=1e-3)


def test_each_corpus_is_read_without_gaps(folders):
    mix = opened({folders[0]: 0.7, folders[1]: 0.3})
    cursors = list(mix.cursors(BLOCK - 500).values())
    for index in range(BLOCK - 500, BLOCK + 500):
        assert list(mix.cursors(index).values()) == cursors
        location = mix.locate(index)
        per_epoch = mix.orders[location.source].per_epoch
        assert (location.epoch, location.position) == divmod(cursors[location.source], per_epoch)
        cursors[location.source] += 1


CHANGED_AT = 150_123
"""Sample at which a mix is changed, in the middle of a block."""


def changed(folders, weights, before=None, **options):
    """Return a mix with equal weights, and the mix that continues it."""
    before = opened(dict.fromkeys(folders, 1), **(before or {}))
    start = ReadCursors(step=7, sample=CHANGED_AT, read=before.samples_read(CHANGED_AT))
    return before, opened(weights, schedule=BatchSchedule(1), start=start, **options)


def test_changed_weights_continue_each_corpus_without_gaps(folders):
    before, after = changed(folders, {folders[0]: 1, folders[1]: 4})
    cursors = [*before.cursors(CHANGED_AT).values()]
    assert after.quotas[1] > 3 * after.quotas[0]
    for index in range(CHANGED_AT, CHANGED_AT + 1000):
        assert [*after.cursors(index).values()] == cursors
        location = after.locate(index)
        per_epoch = after.orders[location.source].per_epoch
        assert (location.epoch, location.position) == divmod(cursors[location.source], per_epoch)
        cursors[location.source] += 1


def test_added_corpus_starts_and_removed_one_ends(folders, tmp_path):
    tiny_corpus(tmp_path / "c", seed=3)
    before, after = changed(folders, {folders[1]: 1, str(tmp_path / "c"): 1})
    assert [*after.cursors(CHANGED_AT).values()] == [before.cursors(CHANGED_AT)[folders[1]], 0]


def test_other_sequence_length_keeps_the_share_of_the_epoch(folders):
    before, after = changed(folders, dict.fromkeys(folders, 1), sequence=16)
    for old, new, cursors in zip(
        before.orders,
        after.orders,
        zip(*(mix.cursors(CHANGED_AT).values() for mix in (before, after)), strict=True),
        strict=True,
    ):
        assert new.per_epoch > 1.5 * old.per_epoch
        assert cursors[1] / new.per_epoch == pytest.approx(cursors[0] / old.per_epoch, abs=1 / old.per_epoch)


def test_epochs_of_a_changed_mix_count_what_was_read(folders):
    before, after = changed(folders, {folders[0]: 1, folders[1]: 4})
    assert after.samples_in(1) == CHANGED_AT
    last = after.samples_in(1 + max(before.epochs_started(CHANGED_AT).values()))
    assert max(after.epochs_started(last).values()) < max(after.epochs_started(last + 1).values())


def test_fresh_samples_are_those_of_the_first_epoch(folders):
    mix = opened({folders[0]: 0.5, folders[1]: 0.5})
    epochs = [mix.locate(index).epoch for index in range(mix.fresh_samples + 1)]
    assert max(epochs[:-1]) == 0
    assert epochs[-1] == 1


@pytest.mark.parametrize("objective", ["causal-lm", "masked-lm-next-sentence"])
def test_shares_of_a_million_samples_are_accurate(folders, tmp_path, objective):
    tiny_corpus(tmp_path / "c", seed=3, lengths=(2, 9))
    weights = {folders[0]: 0.795, folders[1]: 0.2, str(tmp_path / "c"): 0.005}
    mix = opened(weights, objective)
    tokens = [
        samples * order.corpus.split("train").tokens / order.per_epoch
        for samples, order in zip(mix.cursors(10**6).values(), mix.orders, strict=True)
    ]
    assert np.array(tokens) / sum(tokens) == pytest.approx(list(weights.values()), rel=0.001)


@pytest.mark.parametrize("epochs", [1, 3])
def test_samples_in_epochs(folders, epochs):
    mix = opened({folders[0]: 0.5, folders[1]: 0.5})
    last = mix.samples_in(epochs)
    assert max(mix.epochs_started(last).values()) == epochs
    assert max(mix.epochs_started(last + 1).values()) == epochs + 1
    assert mix.locate(last).epoch == epochs
    assert set(mix.epochs_started(0).values()) == {0}


def test_noise_differs_between_epochs(tmp_path):
    # With a single sequence, only noise differs between epochs.
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
def test_static_masks_repeat_after_dupe_factor_epochs(tmp_path, objective):
    tiny_corpus(tmp_path, documents=40, shards=2, lengths=(5, 60))
    mix = opened({str(tmp_path): 1}, objective, sequence=32, dupe_factor=2)
    samples = {}
    for index in range(5 * sum(order.per_epoch for order in mix.orders)):
        location = mix.locate(index)
        if location.epoch < 4:
            sample = mix.sample(index)
            samples[location] = [sample[name].tolist() for name in ("tokens", "masked_positions", "labels")]

    def repeats_after(epochs: int) -> list[bool]:
        later = {location: replace(location, epoch=location.epoch + epochs) for location in samples}
        return [samples[location] == samples[other] for location, other in later.items() if other in samples]

    assert repeats_after(2)
    assert all(repeats_after(2))
    assert not any(repeats_after(1))


def test_packed_masked_sequences_use_each_token_once(tmp_path):
    tiny_corpus(tmp_path, documents=40, vocabulary=60_000, lengths=(1, 70))
    special = tiny_special(60_000)
    mix = opened({str(tmp_path): 1}, "masked-lm", special=special)
    order = mix.orders[0]
    raw = sorted(t for n in range(order.per_epoch) for part in order.piece(0, n) for t in part.tokens.tolist())
    packed = []
    for index in range(order.per_epoch):
        sample = mix.sample(index)
        real = sample["labels"] != IGNORED
        sample["tokens"][sample["masked_positions"][real]] = sample["labels"][real]
        packed += sample["tokens"][~special.is_special[sample["tokens"]]].tolist()
    assert sorted(packed) == raw
    assert order.corpus.split("train").tokens - len(raw) < 30


def test_same_corpus_twice_is_rejected(folders, tmp_path):
    tiny_corpus(tmp_path / "copy", documents=60, seed=1, parts=True)
    with pytest.raises(UserError, match=r"data\.mix has one corpus twice, as"):
        opened({folders[0]: 1, str(tmp_path / "copy"): 1})


def test_corpora_of_two_tokenizers_are_rejected(folders, tmp_path):
    tiny_corpus(tmp_path / "other", fingerprint="another")
    with pytest.raises(UserError, match=r"/a and .*/other were made with different tokenizers"):
        opened({folders[0]: 1, str(tmp_path / "other"): 1})


def test_corpus_with_larger_vocabulary_is_rejected(folders):
    with pytest.raises(UserError, match="1,000 ids, more than the 50 of the tokenizer in use"):
        opened({folders[0]: 1}, special=SpecialTokens(size=50, end=0))


@pytest.mark.parametrize("weights", [(1, 0), (1, -1), (1, float("nan")), (1, 1e-9)])
def test_invalid_weights_are_rejected(folders, weights):
    with pytest.raises(UserError, match=r"data\.mix: .*weight"):
        opened(dict(zip(folders, weights, strict=True)))


def test_too_small_share_is_rejected(folders):
    shares = {"few": {"task": "masked-lm", "share": 1e-9}, "many": {"task": "masked-lm", "share": 1}}
    with pytest.raises(UserError, match=r"is less than one sample in 100,000: raise it, or remove it\."):
        opened({folders[0]: 1}, shares)


def test_empty_mix_is_rejected():
    with pytest.raises(UserError, match=r"data\.mix is empty"):
        opened({})


def test_empty_corpus_is_rejected(tmp_path):
    tiny_corpus(tmp_path, documents=0)
    with pytest.raises(UserError, match="no documents in its split `train`"):
        opened({str(tmp_path): 1})


def test_truncated_shard_is_rejected_on_opening(tmp_path):
    tiny_corpus(tmp_path)
    path = tmp_path / "train-000002.tar"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"train-000002\.tar.*truncated"):
        opened({str(tmp_path): 1})


def test_flipped_byte_is_rejected_on_first_use(tmp_path):
    tiny_corpus(tmp_path)
    path = tmp_path / "train-000001.tar"
    content = bytearray(path.read_bytes())
    content[1000] ^= 4
    path.write_bytes(content)
    mix = opened({str(tmp_path): 1}, window=1)
    with pytest.raises(UserError, match=r"train-000001\.tar is damaged.*copy the shard again"):
        [mix.sample(index) for index in range(mix.orders[0].per_epoch)]
    opened({str(tmp_path): 1}, verify="size").sample(0)


def test_long_document_is_split_into_sequences(tmp_path):
    tiny_corpus(tmp_path, documents=1, shards=1, lengths=(5000, 5000))
    mix = opened({str(tmp_path): 1})
    assert mix.orders[0].per_epoch == 5000 // 32
    assert len({mix.sample(n)["tokens"].tobytes() for n in range(mix.fresh_samples)}) == 5000 // 32


TWO_TASKS = {
    "few": {"task": "masked-lm", "share": {0: 1.0, 3: 0.25}},
    "many": {"task": "masked-lm", "rate": 0.3, "share": {0: 0.0, 3: 0.75}},
}


def test_shares_of_tasks_change_at_their_step(folders):
    schedule = BatchSchedule(1000)
    mix = opened({folders[0]: 3, folders[1]: 1}, TWO_TASKS, schedule=schedule)
    tasks = np.array([mix.sources[mix.locate(index).source].task.label for index in range(3000 + BLOCK)])
    assert set(tasks[:3000]) == {"few"}
    assert (tasks[3000:] == "many").mean() == pytest.approx(0.75, abs=1e-4)
    # Each task reads the corpora by their weights, which are shares of tokens.
    names = [mix.sources[mix.locate(index).source].name for index in range(3000, 3000 + BLOCK)]
    single_task = opened({folders[0]: 3, folders[1]: 1}, "masked-lm")
    share = sum(name.startswith(folders[0]) for name in names) / BLOCK
    assert share == pytest.approx(single_task.quotas[0] / BLOCK, abs=1e-3)


@pytest.mark.parametrize(("options", "expected"), [({}, {"few", "many"}), ({"last_step": 2}, {"few"})])
def test_without_schedule_the_last_shares_of_the_run_apply(folders, options, expected):
    """Validation uses the shares of the last step that the run reaches."""
    mix = opened({folders[0]: 3}, TWO_TASKS, **options)
    assert {mix.sources[mix.locate(index).source].task.label for index in range(100)} == expected


def test_sources_are_read_without_gaps_across_a_change_of_shares(folders):
    mix = opened(dict.fromkeys(folders, 1), TWO_TASKS, schedule=BatchSchedule(40))
    cursors = dict.fromkeys(mix.names, 0)
    for index in range(400):
        assert mix.cursors(index) == cursors
        location = mix.locate(index)
        name = mix.names[location.source]
        per_epoch = mix.orders[location.source].per_epoch
        assert (location.epoch, location.position) == divmod(cursors[name], per_epoch)
        cursors[name] += 1
    last = mix.samples_in(1)
    assert max(mix.epochs_started(last).values()) == 1 < max(mix.epochs_started(last + 1).values())


def test_weights_move_linearly(folders):
    """The share of the second corpus rises from 0 to 3/4 between steps 100 and 300."""
    schedule, (first, second) = BatchSchedule(1000), folders
    mix = opened({first: 1, second: 3}, schedule=schedule, mix_ramp=({first: 1, second: 0}, (100, 300)))
    per_token = np.array([order.per_epoch / order.corpus.split("train").tokens for order in mix.orders])

    def weight_of_second(step):
        read = np.array([[*mix.cursors(1000 * at).values()] for at in (step, step + 2)])
        tokens = (read[1] - read[0]) / per_token
        return tokens[1] / tokens.sum()

    assert [weight_of_second(step) for step in (0, 98)] == [0.0, 0.0]
    # Weights move from (1, 0) to (1, 3).
    middle = [3 * (step - 99) / 200 for step in (150, 200, 250)]
    assert [weight_of_second(step) for step in (150, 200, 250)] == pytest.approx(
        [weight / (1 + weight) for weight in middle], abs=0.03
    )
    assert weight_of_second(400) == pytest.approx(0.75, abs=0.03)


def test_tasks_read_a_corpus_in_different_orders(folders):
    mix = opened({folders[0]: 1}, TWO_TASKS, schedule=BatchSchedule(1))
    first, second = (order.piece(0, 0)[0].tokens for order in mix.orders)
    assert not np.array_equal(first[:8], second[:8])
