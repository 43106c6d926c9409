"""NNLM and C&W match their papers' formulas, learn, and do not depend on the layout."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import load_config, resolve_spec
from megaptm.config.learning_rate import learning_rate_at
from megaptm.data import Corpus
from megaptm.data.statistics import unigram_loss
from megaptm.errors import UserError
from megaptm.families.word_vectors import CW, NNLM, WordSize, WordSpec
from megaptm.families.word_vectors.network_engine import NetworkEngine
from megaptm.families.word_vectors.network_windows import next_words, ranked_windows, tagged_words
from megaptm.families.word_vectors.networks import NextWord, Ranking, build_network
from megaptm.families.word_vectors.ranking import WindowRanking
from megaptm.families.word_vectors.vectors import load_words
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.parallel.step_result import DivergedError
from megaptm.run.corpora import RunCorpora
from megaptm.train.batch_source import BatchSource
from tests.data.corpora import tiny_special
from tests.forked import megaptm
from tests.ranks import run_ranks
from tests.words import planted

RNG = np.random.default_rng(0)
CONFIGS = Path(__file__).parents[2] / "configs"
SIZES = {
    "direct": WordSpec(family=NNLM, size=WordSize(width=3, hidden=4, before=2, direct=True), vocabulary=11),
    "hidden": WordSpec(family=NNLM, size=WordSize(width=3, hidden=4, before=2), vocabulary=11),
    "direct only": WordSpec(family=NNLM, size=WordSize(width=3, before=2, direct=True), vocabulary=11),
}
TAGGING = WordSpec(family=CW, size=WordSize(width=3, hidden=4, before=1, after=2), vocabulary=11, tags=2)
RANKING = WordSpec(family=CW, size=WordSize(width=3, hidden=4, before=1, after=2), vocabulary=11)


def build_filled(spec: WordSpec) -> NextWord | Ranking:
    network = build_network(spec).double()
    network.init_weights(3, 2.0)
    return network


@pytest.mark.parametrize(("size", "published"), [("ap-news", 11_904_264), ("brown", 2_365_384)])
def test_parameter_count_matches_paper(size, published):
    """|V| (1 + n m + h) + h (1 + (n - 1) m), without direct connections |V| (1 + m + h) + ... (section 2)."""
    spec = WordSpec(family=NNLM, size=NNLM.sizes[size], vocabulary=NNLM.tokenizer.vocabulary)
    words, m, h, n = spec.vocabulary, spec.size.width, spec.size.hidden, spec.size.before + 1
    formula = words * (1 + (n if spec.size.direct else 1) * m + h) + h * (1 + (n - 1) * m)
    assert spec.parameters == formula == published


@pytest.mark.parametrize("spec", [*SIZES.values(), RANKING, TAGGING])
def test_module_has_the_counted_parameters(spec):
    assert sum(weight.numel() for weight in build_network(spec).parameters()) == spec.parameters


@pytest.mark.parametrize("name", SIZES)
def test_nnlm_logits_match_the_papers_equation(name):
    network, windows = build_filled(SIZES[name]), torch.tensor([[1, 2], [7, 7], [10, 0]])
    weights = {key: value.detach().numpy() for key, value in network.named_parameters()}
    x = weights["vectors"][windows].reshape(3, -1)
    logits, hidden_width = weights["bias"] + np.zeros((3, 11)), 0
    if "inner.weight" in weights:
        hidden_width = 4
        hidden = np.tanh(x @ weights["inner.weight"].T + weights["inner.bias"])
        logits = logits + hidden @ weights["output"][:, :4].T
    if network.direct:
        logits = logits + x @ weights["output"][:, hidden_width:].T
    assert np.abs(network.logits(windows).detach().numpy() - logits).max() < 1e-12
    labels = torch.tensor([4, 0, 10])
    loss = -(logits - np.log(np.exp(logits).sum(1, keepdims=True)))[range(3), labels].sum()
    assert network.loss(windows, labels).item() == pytest.approx(loss, rel=1e-5)


def test_nnlm_gradient_matches_finite_differences():
    network, windows, labels = build_filled(SIZES["direct"]), torch.tensor([[1, 2], [7, 7]]), torch.tensor([4, 0])

    def loss() -> float:
        return torch.nn.functional.cross_entropy(network.logits(windows), labels, reduction="sum").item()

    network.loss(windows, labels).backward()
    for parameter in network.parameters():
        index = int(parameter.grad.abs().argmax())
        flat = parameter.data.view(-1)
        before = flat[index].item()
        flat[index] = before + 1e-6
        above = loss()
        flat[index] = before - 1e-6
        below = loss()
        flat[index] = before
        assert parameter.grad.view(-1)[index].item() == pytest.approx((above - below) / 2e-6, rel=1e-4)


def test_hinge_loss_and_gradient_match_autograd():
    network, windows = build_filled(RANKING), torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 2]])
    replacements, replaced = torch.tensor([9, 0, 1]), torch.tensor([[1, 9, 3, 4], [5, 0, 7, 8], [9, 1, 2, 2]])
    weights = {key: value.detach().clone().requires_grad_() for key, value in network.named_parameters()}

    def score(windows):
        x = weights["vectors"][windows].reshape(3, -1)
        hidden = (x @ weights["inner.weight"].T + weights["inner.bias"]).clamp(-1, 1)
        return hidden @ weights["score.weight"][0] + weights["score.bias"]

    terms = (1 - score(windows) + score(replaced)).clamp(min=0)
    terms.sum().backward()
    assert terms[2].item() == 1  # the middle word is replaced by itself
    loss = network.loss(windows, replacements)
    loss.backward()
    assert loss.item() == pytest.approx(terms.sum().item(), rel=1e-12)
    for name, parameter in network.named_parameters():
        assert parameter.grad == pytest.approx(weights[name].grad, abs=1e-12)
    with torch.no_grad():
        network.score.weight *= 1e3
        margins = network.scores(windows) - network.scores(replaced)
        assert network.loss(windows, replacements).item() == pytest.approx((1 - margins).clamp(min=0).sum().item())


def test_tag_loss_matches_a_plain_loop():
    """Each filter adds a vector per distance, and the largest value over all positions is used."""
    network, batch = (
        build_filled(TAGGING),
        {"tokens": torch.tensor([[4, 5, 6, 7]]), "tags": torch.tensor([[0, 2, 1, 0]])},
    )
    windows, tags = tagged_words(batch, 1, torch.arange(11), unknown=0)
    weights = {key: value.detach() for key, value in network.named_parameters()}
    total = 0.0
    for middle, tag in enumerate([0, 2, 1, 0]):
        text = dict(enumerate([4, 5, 6, 7]))
        largest = torch.full((4,), -torch.inf, dtype=torch.float64)
        for distance in range(-20, 21):
            positions = range(middle + distance - 2, middle + distance + 3)
            x = torch.cat([weights["vectors"][text.get(position, 1)] for position in positions])
            filtered = weights["tagger.filters.weight"] @ x + weights["tagger.filters.bias"]
            largest = torch.maximum(largest, filtered + weights["tagger.distances"][distance + 20])
        hidden = (weights["tagger.inner.weight"] @ largest + weights["tagger.inner.bias"]).clamp(-1, 1)
        scores = weights["tagger.output.weight"] @ hidden + weights["tagger.output.bias"]
        total -= float(scores.log_softmax(0)[tag])
    assert network.losses["tags"](windows, tags).item() == pytest.approx(total, rel=1e-9)


def test_both_losses_train_the_same_vectors():
    network = build_filled(TAGGING)
    tables = [name for name, weight in network.named_parameters() if weight.shape[0] == TAGGING.vocabulary]
    assert tables == ["vectors"]
    windows = torch.randint(11, (3, 45), generator=torch.Generator().manual_seed(0))
    network.losses["tags"](windows, torch.tensor([0, 1, 2])).backward()
    has_gradient = network.vectors.grad.abs().sum(1) > 0
    assert has_gradient.any()
    assert not has_gradient[~torch.isin(torch.arange(11), windows)].any()
    assert network.score.weight.grad is None


def test_tags_follow_their_words():
    part = DocumentSlice(np.arange(10, 16), slots=0, annotations={"tags": np.array([[1, 3, 0], [5, 6, 1]])})
    task = WindowRanking(num_tags=2)
    untagged = replace(part, annotations={"tags": np.zeros((0, 3), np.int64)})
    made = task.make_sample([part, untagged], SampleContext(tiny_special(), RNG, 12, True))
    assert made["tags"].tolist() == [0, 1, 1, 0, 0, 2, *[0] * 6]
    assert made.keys() == task.batch_spec(12, True).fields.keys()
    assert (task.annotations, dict(task.losses)) == (("tags",), {"ranking": 1.0, "tags": 1.0})
    with pytest.raises(
        UserError, match=r"num_tags \(1\) of window-ranking is too small: the corpus has a tag with index 1\."
    ):
        WindowRanking(num_tags=1).make_sample([part], SampleContext(tiny_special(), RNG, 6, True))


def test_tags_are_learned_with_the_ranking_loss(tmp_path):
    corpus = planted.build(tmp_path / "tagged", tags=True)
    objective = "objective={window-ranking: {num_tags: 2}}"
    losses, initial_tag_loss, tag_entropy = run_ranks(1, train_tags, str(corpus), objective)[0]
    assert losses["tags"] < 0.5 * tag_entropy
    assert tag_entropy < initial_tag_loss
    assert losses["ranking"] < 0.9
    single, both = (run_ranks(ranks, train_steps, str(corpus), "cw", ranks, "", 0, 4, objective) for ranks in (1, 2))
    assert both[0][0] == pytest.approx(single[0][0], rel=1e-5)
    assert np.abs(both[1][2]["tagger.distances"] - single[0][2]["tagger.distances"]).max() < 1e-6


def train_tags(corpus: str, objective: str) -> tuple[dict[str, float], float, float]:
    """Return the held-out losses after training, the tag loss before, and the entropy of the tags' frequencies."""
    # The softmax needs a lower learning rate than the hinge loss.
    rate = ("data.sequence=512", "train.batch=1", "optimizer.lr=0.3")
    config = load_config(CONFIGS / "cw/tiny.yaml", settings("unused", corpus, "model.hidden=50", *rate, objective))
    corpora = RunCorpora(config)
    engine = NetworkEngine(replace(resolve_spec(config), vocabulary=corpora.tokenizer.vocabulary), config, corpora)
    engine.init_weights()
    source = BatchSource(config, engine.ranks, corpora)

    def held_out() -> dict[str, float]:
        results = [engine.evaluate(batches).losses for batches in source.validation_batches()]
        return {name: float(np.mean([losses[name] for losses in results])) for name in results[0]}

    tags = np.concatenate(
        [batch["tags"].numpy().ravel() for batches in source.validation_batches() for batch in batches]
    )
    initial_tag_loss, steps = held_out()["tags"], source.steps(0)
    for step in range(700):
        engine.train_step(next(steps), step=step, lr=learning_rate_at(config, step))
    return held_out(), initial_tag_loss, unigram_loss(np.bincount(tags))


def test_windows_stay_within_documents():
    batch = {
        "tokens": torch.tensor([[4, 5, 6, 7, 8]]),
        "labels": torch.tensor([[5, 6, -100, 8, 9]]),
        "document_ids": torch.tensor([[1, 1, 1, 2, 2]]),
        "replacement_uniforms": torch.tensor([[0.0, 0.3, 0.5, 0.99, 0.7]]),
    }
    windows, labels = next_words(batch, SIZES["hidden"], outside=1)
    assert windows.tolist() == [[1, 4], [4, 5], [1, 7], [7, 8]]
    assert labels.tolist() == [5, 6, 8, 9]
    windows, replacements = ranked_windows(batch, RANKING, 1, torch.tensor([5, 4, 8]), unknown=0)
    assert windows.tolist() == [[1, 4, 5, 0], [4, 5, 0, 1], [0, 8, 1, 1]]
    assert replacements.tolist() == [5, 5, 8]


def settings(run: str | Path, corpus: str | Path, *more: str) -> list[str]:
    return [
        *(f"run={run}", f"data.mix={{{corpus}: 1}}", "data.sequence=64", "track.enabled=false", "data.workers=0"),
        *("model.width=12", "model.hidden=24", "train.batch=8", "train.validate_batches=2", *more),
    ]


LONG_SEQUENCES = ("data.sequence=512", "train.batch=1", "optimizer.lr=3")
GROWING_DICTIONARY = "objective={window-ranking: {dictionary: [[0, 30], [3, 500]]}}"


def train_steps(corpus: str, name: str, ranks: int, folder: str, start: int, stop: int, *more: str):
    """Return the losses of the steps from `start` to `stop`, the held-out loss, the weights and the word counts.

    In float64: in float32 the order of a sum can change the side of a hinge.
    """
    torch.set_default_dtype(torch.float64)
    try:
        return _train_steps(corpus, name, ranks, folder, start, stop, *more)
    finally:
        torch.set_default_dtype(torch.float32)


def _train_steps(corpus: str, name: str, ranks: int, folder: str, start: int, stop: int, *more: str):
    config = load_config(CONFIGS / name / "tiny.yaml", settings("unused", corpus, f"layout.data={ranks}", *more))
    corpora = RunCorpora(config)
    engine = NetworkEngine(replace(resolve_spec(config), vocabulary=corpora.tokenizer.vocabulary), config, corpora)
    source = BatchSource(config, engine.ranks, corpora)
    store = CheckpointStore(Path(folder), fence=lambda: True) if folder else None
    if start and store:
        engine.restore(store.load(start).reader, step=start)
    else:
        engine.init_weights()
    steps = source.steps(start)
    losses = [
        engine.train_step(next(steps), step=step, lr=learning_rate_at(config, step)).loss for step in range(start, stop)
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
    held_out = [engine.evaluate(batches).loss for batches in source.validation_batches()]
    weights = {key: value.detach().numpy() for key, value in engine.network.named_parameters()}
    return losses, np.mean(held_out), weights, engine.counts


@pytest.mark.parametrize(("name", "more"), [("nnlm", ()), ("cw", (GROWING_DICTIONARY,))])
def test_resume_is_bit_identical_and_two_ranks_match_one(name, more, corpus, tmp_path):
    def run(ranks: int, folder: str, start: int, stop: int):
        return run_ranks(ranks, train_steps, str(corpus), name, ranks, str(tmp_path / folder), start, stop, *more)

    [(losses, held_out, weights, counts)] = run(1, "uninterrupted", 0, 6)
    [(first_losses, *_)], [(last_losses, _, resumed_weights, _)] = run(1, "resumed", 0, 3), run(1, "resumed", 3, 6)
    assert first_losses + last_losses == losses
    assert all((resumed_weights[key] == value).all() for key, value in weights.items())
    for rank_losses, rank_held_out, rank_weights, rank_counts in run(2, "two", 0, 6):
        assert rank_losses == pytest.approx(losses, rel=1e-12)
        assert rank_held_out == pytest.approx(held_out, rel=1e-12)
        assert (rank_counts == counts).all()
        assert all(np.abs(rank_weights[key] - value).max() < 1e-12 for key, value in weights.items())
    _, (losses_on_two, *_) = run(2, "resumed", 3, 6)
    assert losses_on_two == pytest.approx(losses[3:], rel=1e-12)


def test_nnlm_beats_a_trigram_model(corpus):
    losses, held_out, _, counts = run_ranks(1, train_steps, str(corpus), "nnlm", 1, "", 0, 300, *LONG_SEQUENCES)[0]
    assert losses[0] == pytest.approx(np.log(len(counts)), rel=0.05)
    assert held_out < unigram_loss(counts) - 0.5
    assert held_out < min(trigram_loss(corpus, len(counts), smoothing) for smoothing in (0.01, 0.03, 0.1)) - 0.3


def trigram_loss(corpus: Path, vocabulary: int, smoothing: float) -> float:
    """Return the held-out loss of a trigram model with additive smoothing, on all words but the first of a document."""
    opened, begin, end = Corpus.open(corpus), 1, 2
    after: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)

    def grams(split: str) -> Iterator[tuple[tuple[int, int], int]]:
        for document in opened.documents(split):
            words = [begin, *document.tolist(), end]
            yield from zip(pairwise(words), words[2:], strict=False)

    for pair, word in grams("train"):
        after[pair][word] += 1
    probabilities = [
        (after[pair][word] + smoothing) / (after[pair].total() + smoothing * vocabulary)
        for pair, word in grams("validation")
    ]
    return float(-np.log(probabilities).mean())


def test_ranking_accuracy_increases(corpus):
    before, after = run_ranks(1, ranking_accuracy, str(corpus))[0]
    assert before < 0.7
    assert after > 0.8


def ranking_accuracy(corpus: str) -> list[float]:
    """Return the share of training windows that score above those with a replaced word, before and after training."""
    config = load_config(CONFIGS / "cw/tiny.yaml", settings("unused", corpus, "model.hidden=50", *LONG_SEQUENCES))
    corpora = RunCorpora(config)
    engine = NetworkEngine(replace(resolve_spec(config), vocabulary=corpora.tokenizer.vocabulary), config, corpora)
    engine.init_weights()
    steps, accuracies = BatchSource(config, engine.ranks, corpora).steps(0), []
    for step in range(801):
        batches = next(steps)
        if step in (0, 800):
            windows, replacements = engine._windows_and_labels(batches[0])["ranking"]
            replaced, changed = windows.clone(), replacements != windows[:, engine.spec.size.before]
            replaced[:, engine.spec.size.before] = replacements
            with torch.no_grad():
                is_above = engine.network.scores(windows) > engine.network.scores(replaced)
            accuracies.append(float(is_above[changed].float().mean()))
        engine.train_step(batches, step=step, lr=learning_rate_at(config, step))
    return accuracies


def test_stop_resume_and_export_words(corpus, tmp_path):
    """The first half is on one rank, the second on two, with a growing dictionary."""
    options = settings(tmp_path / "run", corpus, "train.steps=8", "train.validate_every=4", GROWING_DICTIONARY)
    megaptm("train", CONFIGS / "cw/tiny.yaml", *options, "train.stop_at=2", code=75)
    megaptm("train", CONFIGS / "cw/tiny.yaml", *options, "layout.data=2")
    result = CliRunner().invoke(main, ["export", "words", str(tmp_path / "run"), str(tmp_path / "words.txt")])
    assert result.exit_code == 0, result.output
    vectors = load_words(tmp_path / "run")
    assert (tmp_path / "words.txt").read_text().startswith(f"{len(vectors.words)} 12\n{vectors.words[0]} ")
    assert np.isfinite(vectors.vectors).all()


def test_nan_loss_updates_nothing(corpus):
    assert run_ranks(1, step_with_nan, str(corpus)) == ["step 1 has a loss of nan"]


def step_with_nan(corpus: str) -> str:
    config = load_config(CONFIGS / "nnlm/tiny.yaml", settings("unused", corpus))
    corpora = RunCorpora(config)
    engine = NetworkEngine(replace(resolve_spec(config), vocabulary=corpora.tokenizer.vocabulary), config, corpora)
    engine.init_weights()
    engine.network.bias.data[3] = np.nan
    before = engine.network.vectors.detach().clone()
    with pytest.raises(DivergedError) as caught:
        engine.train_step(next(BatchSource(config, engine.ranks, corpora).steps(0)), step=0, lr=0.1)
    assert (engine.network.vectors == before).all()
    return str(caught.value).split(" and ")[0]


@pytest.mark.parametrize(
    ("name", "option", "message"),
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
def test_unsupported_config_is_rejected(name, option, message):
    with pytest.raises(UserError, match=message):
        load_config(CONFIGS / name / "tiny.yaml", settings("unused", "corpus", option))


def test_learning_rate_halves_after_decay_steps():
    config = load_config(CONFIGS / "nnlm/ap-news.yaml")
    rates = [learning_rate_at(config, step) / config.optimizer.lr for step in (0, 781_250, 3 * 781_250)]
    assert rates == pytest.approx([1, 1 / 2, 1 / 4])
