"""NNLM and C&W: what they compute, in closed form; that they learn; and that no layout shows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.checkpoint.store import Store
from megaptm.config import load, resolve
from megaptm.config.learning_rate import learning_rate_at
from megaptm.data import Corpus
from megaptm.data.statistics import unigram_loss
from megaptm.errors import UserError
from megaptm.families.words import CW, NNLM, WordSize, WordSpec
from megaptm.launch.local import train
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.ranking import WindowRanking
from megaptm.parallel.step_result import DivergedError
from megaptm.run.corpora import RunCorpora
from megaptm.train.batch_source import BatchSource
from megaptm.words.network_engine import NetworkEngine
from megaptm.words.network_windows import judged_windows, next_words, tagged_words
from megaptm.words.networks import NextWord, Ranking, build_network
from megaptm.words.vectors import load_words
from tests.data.corpora import tiny_special
from tests.ranks import run_ranks
from tests.words import planted

RNG = np.random.default_rng(0)
CONFIGS = Path(__file__).parents[2] / "configs"
SIZES = {
    "direct": WordSpec(family=NNLM, size=WordSize(width=3, hidden=4, before=2, direct=True), vocabulary=11),
    "hidden": WordSpec(family=NNLM, size=WordSize(width=3, hidden=4, before=2), vocabulary=11),
    "direct alone": WordSpec(family=NNLM, size=WordSize(width=3, before=2, direct=True), vocabulary=11),
}
TAGGING = WordSpec(family=CW, size=WordSize(width=3, hidden=4, before=1, after=2), vocabulary=11, tags=2)
RANKING = WordSpec(family=CW, size=WordSize(width=3, hidden=4, before=1, after=2), vocabulary=11)


def filled(spec: WordSpec) -> NextWord | Ranking:
    network = build_network(spec).double()
    network.fill(3, 2.0)
    return network


@pytest.mark.parametrize(("size", "published"), [("ap-news", 11_904_264), ("brown", 2_365_384)])
def test_parameters_are_the_papers(size, published):
    """|V| (1 + n m + h) + h (1 + (n - 1) m), without direct maps |V| (1 + m + h) + ... (section 2)."""
    spec = WordSpec(family=NNLM, size=NNLM.sizes[size], vocabulary=NNLM.vocabulary)
    words, m, h, n = spec.vocabulary, spec.size.width, spec.size.hidden, spec.size.before + 1
    formula = words * (1 + (n if spec.size.direct else 1) * m + h) + h * (1 + (n - 1) * m)
    assert spec.parameters == formula == published


@pytest.mark.parametrize("spec", [*SIZES.values(), RANKING, TAGGING])
def test_a_network_has_as_many(spec):
    assert sum(one.numel() for one in build_network(spec).parameters()) == spec.parameters


@pytest.mark.parametrize("name", SIZES)
def test_the_next_word_is_said_as_the_equation_says(name):
    network, windows = filled(SIZES[name]), torch.tensor([[1, 2], [7, 7], [10, 0]])
    one = {key: value.detach().numpy() for key, value in network.named_parameters()}
    x = one["vectors"][windows].reshape(3, -1)
    wanted, at = one["bias"] + np.zeros((3, 11)), 0
    if "inner.weight" in one:
        at = 4
        wanted = wanted + np.tanh(x @ one["inner.weight"].T + one["inner.bias"]) @ one["output"][:, :4].T
    if network.direct:
        wanted = wanted + x @ one["output"][:, at:].T
    assert np.abs(network.logits(windows).detach().numpy() - wanted).max() < 1e-12
    labels = torch.tensor([4, 0, 10])
    said = -(wanted - np.log(np.exp(wanted).sum(1, keepdims=True)))[range(3), labels].sum()
    assert network.loss(windows, labels).item() == pytest.approx(said, rel=1e-5)


def test_its_gradient_is_that_of_finite_differences():
    network, windows, labels = filled(SIZES["direct"]), torch.tensor([[1, 2], [7, 7]]), torch.tensor([4, 0])

    def said() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(network.logits(windows), labels, reduction="sum")

    network.loss(windows, labels).backward()
    for parameter in network.parameters():
        place = int(parameter.grad.abs().argmax())
        flat = parameter.data.view(-1)
        before = flat[place].item()
        flat[place] = before + 1e-6
        above = said().item()
        flat[place] = before - 1e-6
        below = said().item()
        flat[place] = before
        assert parameter.grad.view(-1)[place].item() == pytest.approx((above - below) / 2e-6, rel=1e-4)


def test_the_hinge_and_its_gradient_are_the_closed_form():
    network, windows = filled(RANKING), torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 2]])
    others, wrong = torch.tensor([9, 0, 1]), torch.tensor([[1, 9, 3, 4], [5, 0, 7, 8], [9, 1, 2, 2]])
    one = {key: value.detach().clone().requires_grad_() for key, value in network.named_parameters()}

    def score(some):
        hidden = (one["vectors"][some].reshape(3, -1) @ one["inner.weight"].T + one["inner.bias"]).clamp(-1, 1)
        return hidden @ one["score.weight"][0] + one["score.bias"]

    terms = (1 - score(windows) + score(wrong)).clamp(min=0)
    terms.sum().backward()
    assert terms[2].item() == 1  # the same word: nothing to tell apart
    loss = network.loss(windows, others)
    loss.backward()
    assert loss.item() == pytest.approx(terms.sum().item(), rel=1e-12)
    for name, parameter in network.named_parameters():
        assert parameter.grad == pytest.approx(one[name].grad, abs=1e-12)
    with torch.no_grad():
        network.score.weight *= 1e3
        margins = network.scores(windows) - network.scores(wrong)
        assert network.loss(windows, others).item() == pytest.approx((1 - margins).clamp(min=0).sum().item())


def test_a_tag_is_said_by_the_largest_of_each_filter_over_all_places():
    """Written out word by word, with what distances add to filters."""
    network, batch = filled(TAGGING), {"tokens": torch.tensor([[4, 5, 6, 7]]), "tags": torch.tensor([[0, 2, 1, 0]])}
    windows, tags = tagged_words(batch, 1, torch.arange(11), unknown=0)
    one = {key: value.detach() for key, value in network.named_parameters()}
    total = 0.0
    for middle, tag in enumerate([0, 2, 1, 0]):
        text = dict(enumerate([4, 5, 6, 7]))
        largest = torch.full((4,), -torch.inf, dtype=torch.float64)
        for distance in range(-20, 21):
            places = range(middle + distance - 2, middle + distance + 3)
            read = torch.cat([one["vectors"][text.get(place, 1)] for place in places])
            said = one["tagger.filters.weight"] @ read + one["tagger.filters.bias"]
            largest = torch.maximum(largest, said + one["tagger.distances"][distance + 20])
        hidden = (one["tagger.inner.weight"] @ largest + one["tagger.inner.bias"]).clamp(-1, 1)
        scores = one["tagger.output.weight"] @ hidden + one["tagger.output.bias"]
        total -= float(scores.log_softmax(0)[tag])
    assert network.losses["tags"](windows, tags).item() == pytest.approx(total, rel=1e-9)


def test_both_questions_move_the_same_vectors():
    network = filled(TAGGING)
    tables = [name for name, one in network.named_parameters() if one.shape[0] == TAGGING.vocabulary]
    assert tables == ["vectors"]
    windows = torch.randint(11, (3, 45), generator=torch.Generator().manual_seed(0))
    network.losses["tags"](windows, torch.tensor([0, 1, 2])).backward()
    moved = network.vectors.grad.abs().sum(1) > 0
    assert moved.any()
    assert not moved[~torch.isin(torch.arange(11), windows)].any()
    assert network.score.weight.grad is None


def test_tags_of_a_row_are_those_of_its_words():
    part = DocumentSlice(np.arange(10, 16), slots=0, annotations={"tags": np.array([[1, 3, 0], [5, 6, 1]])})
    task = WindowRanking(tags=2)
    untagged = replace(part, annotations={"tags": np.zeros((0, 3), np.int64)})
    made = task.make([part, untagged], SampleContext(tiny_special(), RNG, 12, True))
    assert made["tags"].tolist() == [0, 1, 1, 0, 0, 2, *[0] * 6]
    assert made.keys() == task.batch(12, True).fields.keys()
    assert (task.annotations, dict(task.losses)) == (("tags",), {"ranking": 1.0, "tags": 1.0})
    with pytest.raises(UserError, match=r"tags \(1\) of window-ranking are fewer than the labels of the corpus"):
        WindowRanking(tags=1).make([part], SampleContext(tiny_special(), RNG, 6, True))


def test_it_learns_tags_beside_its_windows(tmp_path):
    corpus = planted.build(tmp_path / "tagged", tags=True)
    asked = "objective={window-ranking: {tags: 2}}"
    told, often = run_ranks(1, tagged, str(corpus), asked)[0]
    assert told["tags"] < often - 0.05
    assert often < told["at first"]
    assert told["ranking"] < 0.9
    one, two = (run_ranks(ranks, learned, str(corpus), "cw", ranks, "", 0, 4, asked) for ranks in (1, 2))
    assert two[0][0] == pytest.approx(one[0][0], rel=1e-5)
    assert np.abs(two[1][2]["tagger.distances"] - one[0][2]["tagger.distances"]).max() < 1e-6


def tagged(corpus: str, asked: str) -> tuple[dict[str, float], float]:
    """Held-out losses after some steps, and that of tags before the first; and of who knows how often each tag is."""
    # A softmax is not for the rate of a hinge.
    rate = ("data.sequence=512", "train.batch=1", "optimizer.lr=0.3")
    config = load(CONFIGS / "cw/tiny.yaml", settings("unused", corpus, "model.hidden=50", *rate, asked))
    corpora = RunCorpora(config)
    engine = NetworkEngine(replace(resolve(config), vocabulary=corpora.tokenizer.vocabulary), config, corpora)
    engine.fill()
    source = BatchSource(config, engine.ranks, corpora)

    def held_out() -> dict[str, float]:
        found = [engine.evaluate(batches).losses for batches in source.held_out()]
        return {name: float(np.mean([one[name] for one in found])) for name in found[0]}

    tags = np.concatenate([batch["tags"].numpy().ravel() for batches in source.held_out() for batch in batches])
    first, steps = held_out()["tags"], source.steps(0)
    for step in range(400):
        engine.step(next(steps), step=step, lr=learning_rate_at(config, step))
    return {**held_out(), "at first": first}, unigram_loss(np.bincount(tags))


def test_windows_end_where_a_document_does():
    batch = {
        "tokens": torch.tensor([[4, 5, 6, 7, 8]]),
        "labels": torch.tensor([[5, 6, -100, 8, 9]]),
        "document_ids": torch.tensor([[1, 1, 1, 2, 2]]),
        "others": torch.tensor([[0.0, 0.3, 0.5, 0.99, 0.7]]),
    }
    windows, labels = next_words(batch, SIZES["hidden"], outside=1)
    assert windows.tolist() == [[1, 4], [4, 5], [1, 7], [7, 8]]
    assert labels.tolist() == [5, 6, 8, 9]
    windows, others = judged_windows(batch, RANKING, 1, torch.tensor([5, 4, 8]), unknown=0)
    assert windows.tolist() == [[1, 4, 5, 0], [4, 5, 0, 1], [0, 8, 1, 1]]
    assert others.tolist() == [5, 5, 8]


def settings(run: str | Path, corpus: str | Path, *more: str) -> list[str]:
    return [
        *(f"run={run}", f"data.mix={{{corpus}: 1}}", "data.sequence=64", "track.enabled=false", "data.workers=0"),
        *("model.width=12", "model.hidden=24", "train.batch=8", "train.validate_batches=2", *more),
    ]


LONG_ROWS = ("data.sequence=512", "train.batch=1", "optimizer.lr=3")
GROWING = "objective={window-ranking: {dictionary: [[0, 30], [3, 500]]}}"


def learned(corpus: str, name: str, ranks: int, folder: str, start: int, stop: int, *more: str):
    """The losses of some steps, begun from the checkpoint of step `start`, the held-out loss, and the weights.

    Of 64-bit numbers: of a hinge's two sides the order of a sum would now and then choose another.
    """
    torch.set_default_dtype(torch.float64)
    try:
        return _learned(corpus, name, ranks, folder, start, stop, *more)
    finally:
        torch.set_default_dtype(torch.float32)


def _learned(corpus: str, name: str, ranks: int, folder: str, start: int, stop: int, *more: str):
    config = load(CONFIGS / name / "tiny.yaml", settings("unused", corpus, f"layout.data={ranks}", *more))
    corpora = RunCorpora(config)
    engine = NetworkEngine(replace(resolve(config), vocabulary=corpora.tokenizer.vocabulary), config, corpora)
    source = BatchSource(config, engine.ranks, corpora)
    store = Store(Path(folder), fence=lambda: True) if folder else None
    if start and store:
        engine.restore(store.load(start).reader, step=start)
    else:
        engine.fill()
    steps = source.steps(start)
    losses = [
        engine.step(next(steps), step=step, lr=learning_rate_at(config, step)).loss for step in range(start, stop)
    ]
    if store and not start:
        torch.distributed.barrier()
        if engine.ranks.data == 0:
            store.prepare(stop)
        torch.distributed.barrier()
        store.write(stop, engine.ranks.data, list(engine.pieces()))
        torch.distributed.barrier()
        if engine.ranks.data == 0:
            store.commit(stop, {}, ranks=ranks)
    held_out = [engine.evaluate(batches).loss for batches in source.held_out()]
    weights = {key: value.detach().numpy() for key, value in engine.network.named_parameters()}
    return losses, np.mean(held_out), weights, engine.counts


@pytest.mark.parametrize(("name", "more"), [("nnlm", ()), ("cw", (GROWING,))])
def test_two_ranks_learn_what_one_learns_and_go_on_to_the_last_bit(name, more, corpus, tmp_path):
    whole = run_ranks(1, learned, str(corpus), name, 1, str(tmp_path / "whole"), 0, 6, *more)[0]
    halves = [
        run_ranks(1, learned, str(corpus), name, 1, str(tmp_path / "half"), *at, *more)[0] for at in ((0, 3), (3, 6))
    ]
    assert halves[0][0] + halves[1][0] == whole[0]
    assert all((halves[1][2][key] == value).all() for key, value in whole[2].items())
    for rank in run_ranks(2, learned, str(corpus), name, 2, str(tmp_path / "two"), 0, 6, *more):
        assert rank[0] == pytest.approx(whole[0], rel=1e-12)
        assert rank[1] == pytest.approx(whole[1], rel=1e-12)
        assert (rank[3] == whole[3]).all()
        assert all(np.abs(rank[2][key] - value).max() < 1e-12 for key, value in whole[2].items())
    # The same checkpoint on two ranks.
    on_two = run_ranks(2, learned, str(corpus), name, 2, str(tmp_path / "half"), 3, 6, *more)
    assert on_two[1][0] == pytest.approx(whole[0][3:], rel=1e-12)


def test_the_next_word_is_known_better_than_by_the_two_before_it(corpus):
    losses, held_out, _, counts = run_ranks(1, learned, str(corpus), "nnlm", 1, "", 0, 300, *LONG_ROWS)[0]
    assert losses[0] == pytest.approx(np.log(len(counts)), rel=0.05)
    assert held_out < unigram_loss(counts) - 0.5
    assert held_out < min(trigram_loss(corpus, len(counts), more) for more in (0.01, 0.03, 0.1)) - 0.3


def trigram_loss(corpus: Path, vocabulary: int, more: float) -> float:
    """Of the held-out documents' words but the first, and of their ends, by those of the others: each count is so much
    more than it is."""
    opened, begin, end = Corpus.open(corpus), 1, 2
    after: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)

    def grams(split: str) -> Iterator[tuple[tuple[int, int], int]]:
        for document in opened.documents(split):
            words = [begin, *document.tolist(), end]
            yield from (((one, two), three) for one, two, three in zip(words, words[1:], words[2:], strict=False))

    for pair, word in grams("train"):
        after[pair][word] += 1
    chances = [
        (after[pair][word] + more) / (after[pair].total() + more * vocabulary) for pair, word in grams("validation")
    ]
    return float(-np.log(chances).mean())


def test_windows_are_told_from_others(corpus):
    accuracy = run_ranks(1, ranked, str(corpus))[0]
    assert accuracy[0] < 0.7
    assert accuracy[1] > 0.8


def ranked(corpus: str) -> list[float]:
    """The share of windows of training text that are above the same with another word, before training and after."""
    config = load(CONFIGS / "cw/tiny.yaml", settings("unused", corpus, "model.hidden=50", *LONG_ROWS))
    corpora = RunCorpora(config)
    engine = NetworkEngine(replace(resolve(config), vocabulary=corpora.tokenizer.vocabulary), config, corpora)
    engine.fill()
    steps, found = BatchSource(config, engine.ranks, corpora).steps(0), []
    for step in range(801):
        batches = next(steps)
        if step in (0, 800):
            windows, others = engine._asked(batches[0])["ranking"]
            wrong, changed = windows.clone(), others != windows[:, engine.spec.size.before]
            wrong[:, engine.spec.size.before] = others
            with torch.no_grad():
                right = engine.network.scores(windows) > engine.network.scores(wrong)
            found.append(float(right[changed].float().mean()))
        engine.step(batches, step=step, lr=learning_rate_at(config, step))
    return found


def test_from_text_to_vectors(corpus, tmp_path):
    """Half of it on one rank, half on two, with a dictionary that grows."""
    usual = settings(tmp_path / "run", corpus, "train.steps=8", "train.validate_every=4", GROWING)
    assert train(CONFIGS / "cw/tiny.yaml", [*usual, "train.stop_at=2"]) == 75
    assert train(CONFIGS / "cw/tiny.yaml", [*usual, "layout.data=2"]) == 0
    said = CliRunner().invoke(main, ["export", "words", str(tmp_path / "run"), str(tmp_path / "words.txt")])
    assert said.exit_code == 0, said.output
    vectors = load_words(tmp_path / "run")
    assert (tmp_path / "words.txt").read_text().startswith(f"{len(vectors.words)} 12\n{vectors.words[0]} ")
    assert np.isfinite(vectors.vectors).all()


def test_a_number_that_is_none_moves_nothing(corpus):
    assert run_ranks(1, diverged, str(corpus)) == ["step 1 has a loss of nan"]


def diverged(corpus: str) -> str:
    config = load(CONFIGS / "nnlm/tiny.yaml", settings("unused", corpus))
    corpora = RunCorpora(config)
    engine = NetworkEngine(replace(resolve(config), vocabulary=corpora.tokenizer.vocabulary), config, corpora)
    engine.fill()
    engine.network.bias.data[3] = np.nan
    before = engine.network.vectors.detach().clone()
    with pytest.raises(DivergedError) as caught:
        engine.step(next(BatchSource(config, engine.ranks, corpora).steps(0)), step=0, lr=0.1)
    assert (engine.network.vectors == before).all()
    return str(caught.value).split(" and ")[0]


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("nnlm", "layout.pipeline=2", r"layout.pipeline \(2\) is not used by nnlm, which each data rank holds in full"),
        ("cw", "layout.tensor=2", r"layout.tensor \(2\) is not used by cw"),
        ("cw", "optimizer.momentum=0.9", "optimizer.momentum is not used by cw"),
        ("nnlm", "model.after=3", "model.after is not used by nnlm: remove it, or use cw"),
        ("nnlm", "objective=window-ranking", r"objective \(window-ranking\) does not fit nnlm"),
        ("nnlm", "model.hidden=0", r"model.hidden \(0\) and model.direct \(false\) leave nnlm no path"),
        ("nnlm", "optimizer.decay_steps=null", "optimizer.decay inverse needs optimizer.decay_steps"),
        ("cw", "objective={window-ranking: {dictionary: [[1, 50]]}}", "the first must be 0"),
    ],
)
def test_what_they_cannot_honor_is_refused(name, more, told):
    with pytest.raises(UserError, match=told):
        load(CONFIGS / name / "tiny.yaml", settings("unused", "corpus", more))


def test_the_rate_halves_after_as_many_steps():
    config = load(CONFIGS / "nnlm/ap-news.yaml")
    rates = [learning_rate_at(config, step) / config.optimizer.lr for step in (0, 781_250, 3 * 781_250)]
    assert rates == pytest.approx([1, 1 / 2, 1 / 4])
