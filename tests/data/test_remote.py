"""A corpus on an object store gives the samples of the folder it came from, in order, whatever the network does."""

import multiprocessing
import threading
import time

import numpy as np
import pytest

from megaptm.data import Loader, open_mix
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.storage import Cache, RetryPolicy
from tests.data.corpora import publish, tiny_corpus, tiny_special

RETRY = RetryPolicy(seconds=30, deadline=1.0, pause=0.05, max_pause=0.2, report=lambda line: None)
URL = "s3://corpora/tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, s3):
    folder = tmp_path_factory.mktemp("corpus") / "tiny"
    tiny_corpus(folder, documents=60, shards=12)
    publish(folder, URL, RETRY)
    return folder


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", retry=RETRY)


def opened(place, cache=None, objective="causal-lm", **options):
    options = {"window": 2, "seed": 0, "sequence": 32, "special": tiny_special(), **options}
    return open_mix({str(place): 1.0}, objective=objective, cache=cache, **options)


def samples(mix, numbers=None):
    return [mix.sample(number) for number in numbers or range(mix.orders[0].per_epoch)]


def assert_same(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)


def fetched(faults, suffix=".tar"):
    """Times each shard was asked for."""
    asked = [request.split()[1] for request in faults.requests if request.startswith("GET ")]
    return {path: asked.count(path) for path in asked if path.endswith(suffix)}


@pytest.mark.parametrize("objective", ["causal-lm", "masked-lm-next-sentence"])
def test_the_samples_are_those_of_the_folder(folder, cache, faults, objective):
    assert_same(samples(opened(URL, cache, objective)), samples(opened(folder, objective=objective)))


@pytest.mark.parametrize("kind", ["reset", "error", "stall", "truncate", "corrupt"])
def test_faults_change_nothing(folder, cache, faults, kind):
    faults.inject(kind, match=r"GET .*(tar|npy)$", times=2, seconds=1.5)
    faults.inject(kind, match=r"GET .*train-00000[3-7]\.tar$", times=2, seconds=1.5)
    assert_same(samples(opened(URL, cache)), samples(opened(folder)))
    assert faults.injected == [kind] * 4


def test_a_server_that_was_down_for_a_while_changes_nothing(folder, cache, faults):
    mix = opened(URL, cache)
    first = samples(mix, range(3))
    faults.down()
    threading.Timer(2.0, faults.up).start()
    assert_same([*first, *samples(mix)[3:]], samples(opened(folder)))


@pytest.mark.parametrize("workers", [0, 2])
def test_when_patience_ends_the_consumer_is_told(folder, tmp_path, faults, workers):
    retry = RetryPolicy(seconds=3.0, deadline=3.0, pause=0.05, max_pause=0.2, report=lambda line: None)
    cache = Cache(tmp_path)
    mix = opened(URL, cache)
    object.__setattr__(cache, "retry", retry)  # only now: a server on a busy machine may be slow
    faults.down()
    with (
        Loader(mix, batch=1, microbatch=1, workers=workers) as loader,
        pytest.raises(UserError, match=rf"^{URL}/train-0000\d\d\.\S+ could not be reached for \d+ s [^\n]*$"),
    ):
        next(loader)


def test_loader_processes_share_the_cache(folder, cache, faults):
    loaders = [Loader(opened(URL, cache), batch=2, microbatch=1, rank=rank, ranks=2, workers=2) for rank in (0, 1)]
    mix = opened(folder)
    for step in range(mix.orders[0].per_epoch // 2):
        for rank, loader in enumerate(loaders):
            [batch] = next(loader)[1]
            assert np.array_equal(batch["tokens"][0].numpy(), mix.sample(2 * step + rank)["tokens"])
    for loader in loaders:
        loader.close()
    assert set(fetched(faults).values()) == {1}


def test_the_cache_stays_in_its_bounds(folder, tmp_path, faults):
    sizes = {path.name: path.stat().st_size for path in folder.glob("train-*")}
    most = 3 * max(sizes.values())
    cache = Cache(tmp_path, max_bytes=most, retry=RETRY)
    mix = opened(URL, cache, window=1)
    for number, expected in enumerate(samples(opened(folder, window=1))):
        assert_same([mix.sample(number)], [expected])
        # Four threads may each have made room for their own before the others' had come.
        assert sum(path.stat().st_size for path in tmp_path.glob("*/train-0*")) <= most + 4 * max(sizes.values())
    assert len(list(tmp_path.glob("*/*.tar"))) < 12


def test_a_shard_larger_than_the_cache_is_refused(folder, tmp_path, faults):
    mix = opened(URL, Cache(tmp_path, max_bytes=3000, retry=RETRY))
    with pytest.raises(UserError, match=r"^data\.max_cache_bytes \(3,000\) is less than the [\d,]+ bytes of s3://"):
        mix.sample(0)


def test_the_next_window_comes_while_this_one_is_read(folder, cache, faults):
    mix = opened(URL, cache)
    mix.sample(0)
    epoch = mix.orders[0]._epoch(0)
    coming = {mix.orders[0].shards.info(int(shard)).name for shard in epoch.shards_of(1)}
    deadline = time.monotonic() + 20
    while not coming <= {path.name for path in cache.folder.glob("*/*.tar")}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_copy_that_was_damaged_is_fetched_again(folder, cache, faults):
    samples(opened(URL, cache))
    copy = sorted(cache.folder.glob("*/train-000004.tar"))[0]
    content = bytearray(copy.read_bytes())
    content[1000] ^= 1
    copy.write_bytes(content)
    faults.requests.clear()
    assert_same(samples(opened(URL, cache)), samples(opened(folder)))
    assert fetched(faults) == {"/corpora/tiny/train-000004.tar": 1}


def test_a_shard_that_is_damaged_there_is_put_aside_and_named(tmp_path, faults):
    place = "s3://corpora/damaged"
    tiny_corpus(tmp_path / "corpus", shards=1, seed=5)
    publish(tmp_path / "corpus", place, RETRY)
    faults.inject("corrupt", match=r"GET .*train-000000\.tar$", times=100)
    mix = opened(place, Cache(tmp_path / "cache", retry=RETRY))
    with pytest.raises(UserError) as told:
        mix.sample(0)
    [kept] = (tmp_path / "cache" / "quarantine").iterdir()
    assert str(told.value) == (
        f"{place}/train-000000.tar is damaged: after 3 downloads its sha256 still differs from the manifest's "
        f"(last copy: {kept}). Upload the file again, or rebuild the corpus."
    )
    assert not list((tmp_path / "cache").glob("damaged-*/*.tar"))


def test_half_a_copy_is_no_corpus(tmp_path, faults):
    place = "s3://corpora/half"
    tiny_corpus(tmp_path / "corpus", seed=6)
    publish(tmp_path / "corpus", place, RETRY)
    faults.inject("error", match=r"PUT .*train-000002\.tar$", times=1000)
    with pytest.raises(UserError, match="could not be reached"):
        publish(tmp_path / "corpus", place, RetryPolicy(seconds=3, deadline=5, pause=0.05, report=lambda line: None))
    with pytest.raises(
        UserError, match=rf"^{place}/manifest\.json does not exist, so {place} is not a finished corpus"
    ):
        Corpus.open(place, Cache(tmp_path / "cache", retry=RETRY))


def test_a_corpus_built_again_at_its_url_is_not_taken_for_the_old_one(tmp_path, faults):
    place, cache = "s3://corpora/again", Cache(tmp_path / "cache", retry=RETRY)
    for seed in (7, 8):
        tiny_corpus(tmp_path / str(seed), seed=seed)
        publish(tmp_path / str(seed), place, RETRY)
        assert_same(samples(opened(place, cache)), samples(opened(tmp_path / str(seed))))


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer/tokenizer.json"])
def test_what_is_too_large_to_describe_a_corpus_is_not_fetched(tmp_path, faults, monkeypatch, name):
    place = "s3://corpora/large"
    tiny_corpus(tmp_path / "corpus", seed=9)
    (tmp_path / "corpus/tokenizer").mkdir(exist_ok=True)
    with (tmp_path / "corpus" / name).open("a") as file:
        file.write(" " * 100_001)
    publish(tmp_path / "corpus", place, RETRY)
    monkeypatch.setattr("megaptm.storage.files.MAX_METADATA_BYTES", 100_000)
    with pytest.raises(
        UserError, match=rf"^{place}/{name} has [\d,]+ bytes, more than the maximum of 100,000 .*check the path"
    ):
        Corpus.open(place, Cache(tmp_path / "cache", retry=RETRY))
    assert not list((tmp_path / "cache").rglob(name))


def _read_all(cache, results):
    results.put([sample["tokens"].tolist() for sample in samples(opened(URL, cache))])


def test_processes_that_start_together_fetch_each_shard_once(folder, cache, faults):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_read_all, args=(cache, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert found == [[sample["tokens"].tolist() for sample in samples(opened(folder))]] * 3
    assert len(fetched(faults)) == 12
    assert set(fetched(faults).values()) == {1}
