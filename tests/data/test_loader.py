"""What a step holds: the same for any ranks, workers, micro-batches and restarts."""

import itertools
import multiprocessing

import pytest
import torch

from megaptm.data import Loader, open_mix, validation_batches
from megaptm.errors import UserError
from tests.data.corpora import tiny_corpus, tiny_special

BATCH, STEPS = 36, 2


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    root = tmp_path_factory.mktemp("loader")
    tiny_corpus(root / "a", seed=1)
    tiny_corpus(root / "b", seed=2)
    return open_mix(
        {str(root / "a"): 0.7, str(root / "b"): 0.3},
        objective="masked-lm-next-sentence",
        sequence=32,
        seed=0,
        special=tiny_special(),
    )


def rows(batches):
    """A step's micro-batches end to end: field -> [samples, ...]."""
    return {field: torch.cat([batch[field] for batch in batches]) for field in batches[0]}


def read(mix, *, ranks=1, start=0, steps=STEPS, microbatch=1, workers=0):
    """The global batch of each step, put together from what each rank reads."""
    steps_of_ranks = []
    for rank in range(ranks):
        with Loader(
            mix, start_step=start, batch=BATCH, microbatch=microbatch, rank=rank, ranks=ranks, workers=workers
        ) as loader:
            taken = list(itertools.islice(loader, steps))
        assert [step for step, _ in taken] == list(range(start, start + steps))
        assert all(len(batch["tokens"]) == microbatch for _, batches in taken for batch in batches)
        steps_of_ranks.append([rows(batches) for _, batches in taken])
    return [rows(list(step)) for step in zip(*steps_of_ranks, strict=True)]


def assert_same(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for field in one:
            assert torch.equal(one[field], other[field]), field


@pytest.fixture(scope="module")
def expected(mix):
    def step(number):
        samples = [mix.sample(number * BATCH + at) for at in range(BATCH)]
        return {field: torch.stack([torch.tensor(sample[field]) for sample in samples]) for field in samples[0]}

    return [step(number) for number in range(10)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("microbatch", [1, 3])
def test_ranks_and_microbatches_do_not_change_the_samples(mix, expected, ranks, microbatch):
    assert_same(read(mix, ranks=ranks, microbatch=microbatch), expected[:STEPS])


@pytest.mark.parametrize(("workers", "ranks"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_workers_do_not_change_the_samples(mix, expected, workers, ranks):
    assert_same(read(mix, ranks=ranks, workers=workers, microbatch=2), expected[:STEPS])
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("start", [1, 4, 7])
def test_any_step_can_be_the_first(mix, expected, start):
    assert_same(read(mix, start=start), expected[start : start + STEPS])
    assert_same(read(mix, start=start, ranks=2, workers=1), expected[start : start + STEPS])


def test_a_start_far_away_needs_nothing_before_it(mix):
    step = 10**9
    (batch,) = read(mix, start=step, steps=1)
    assert torch.equal(batch["tokens"][5], torch.tensor(mix.sample(step * BATCH + 5)["tokens"]))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_generator_of_dropout_is_left_alone(mix, workers):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    read(mix, workers=workers, steps=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_shard_reaches_the_consumer_as_one_sentence(tmp_path, workers):
    info = tiny_corpus(tmp_path).splits["train"].shards[0]
    content = bytearray((tmp_path / info.name).read_bytes())
    content[-2000] ^= 1
    (tmp_path / info.name).write_bytes(content)
    mix = open_mix({str(tmp_path): 1}, objective="causal-lm", sequence=32, seed=0, special=tiny_special())
    with (
        Loader(mix, batch=1, microbatch=1, workers=workers) as loader,
        pytest.raises(UserError, match=r"^\S+train-000000\.tar is damaged [^\n]*$"),
    ):
        next(loader)


def test_a_batch_that_cannot_be_divided_is_refused(mix):
    with pytest.raises(UserError, match=r"train\.batch \(12\) must be a multiple of layout\.data \(5\)"):
        Loader(mix, batch=12, microbatch=1, ranks=5)


@pytest.fixture(scope="module")
def held_out(mix):
    return open_mix(
        dict.fromkeys(mix.names, 1),
        split="validation",
        objective="causal-lm",
        sequence=32,
        seed=0,
        special=tiny_special(),
    )


def test_validation_is_finite_and_always_the_same(held_out):
    whole = [rows(batches) for batches in validation_batches(held_out, batch=4, microbatch=2)]
    assert len(whole) == held_out.fresh_samples // 4 > 1
    assert_same([rows(batches) for batches in validation_batches(held_out, batch=4, microbatch=2)], whole)
    parts = [validation_batches(held_out, batch=4, microbatch=1, rank=rank, ranks=2, max_steps=2) for rank in (0, 1)]
    assert_same([rows([*first, *second]) for first, second in zip(*parts, strict=True)], whole[:2])


def test_a_validation_split_smaller_than_a_batch_is_refused(held_out):
    with pytest.raises(UserError, match="less than one batch of 1000: build the corpus with a larger validation split"):
        validation_batches(held_out, batch=1000, microbatch=1)
