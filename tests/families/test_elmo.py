"""ELMo: parameter count, both directions, characters, negatives, layer mixes, training, and configs."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from megaptm.config import load_config, resolve_model
from megaptm.config.check import refuse_invalid_config
from megaptm.config.model import with_resolved_model
from megaptm.data import open_mix
from megaptm.errors import UserError
from megaptm.families.elmo import ELMO
from megaptm.families.elmo.every_layer import ScalarMix, TaskWithLayers, all_layer_outputs, reverse_texts
from megaptm.families.elmo.sampled import sample_negatives, sampled_cross_entropy
from megaptm.families.elmo.spelling import character_ids, vocabulary_spellings
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plan.count import count_parameters
from megaptm.spec import change, published_spec
from tests.data.corpora import SPECIALS, tiny_corpus
from tests.models.recurrent import VOCABULARY, elmo_batch, tiny_elmo

HEAD = "bidirectional-lm"


@pytest.mark.parametrize(
    ("size", "expected"), [("small", 13_593_312), ("medium", 28_027_744), ("original", 93_600_864)]
)
def test_published_parameter_count(size, expected):
    assert count_parameters(published_spec(ELMO, size)) == expected


def build_tiny_model(**options):
    model = Model(tiny_elmo(**options))
    init_weights(model, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "recurrent" in name or "filters" in name:
                parameter *= 4  # so that inputs change outputs clearly
    return model


def test_parameter_count_equals_built_model():
    model = build_tiny_model()
    rows = model.spec.padded_vocabulary - model.spec.vocabulary
    built = sum(parameter.numel() for parameter in model.parameters()) - rows * (model.spec.size.width + 1)
    assert count_parameters(model.spec, with_heads=True) == built


def test_each_direction_reads_its_own_prefix():
    """Logits depend on the tokens read so far, not on the label, nor on the input of the other direction."""
    model, batch = build_tiny_model().eval(), elmo_batch(2, 9, seed=1)
    with torch.no_grad():
        before = model.logits(batch)[HEAD]
        for direction, prefix in enumerate(("", "backwards_")):
            for position in (3, 8):
                characters = batch[f"{prefix}characters"].clone()
                characters[:, position] = 262 - characters[:, position]
                after = model.logits({**batch, f"{prefix}characters": characters})[HEAD]
                changed = (after - before).abs().amax(-1) > 1e-6
                assert not changed[:, 1 - direction].any()
                assert changed[:, direction].equal((torch.arange(9) >= position).expand(2, -1))


def test_backward_direction_is_forward_with_its_weights():
    model, batch = build_tiny_model().eval(), elmo_batch(2, 9, seed=1)
    characters, lengths = batch["characters"], torch.tensor([9, 6])
    with torch.no_grad():
        states = all_layer_outputs(model, characters, lengths)
        model.forwards, model.backwards = model.backwards, model.forwards
        reversed_states = all_layer_outputs(model, reverse_texts(characters, lengths), lengths)
    width = model.spec.size.width
    for row, length in enumerate(lengths.tolist()):
        expected = reversed_states[:, row, :length].flip(1)
        torch.testing.assert_close(states[:, row, :length, width:], expected[..., :width])
        torch.testing.assert_close(states[:, row, :length, :width], expected[..., width:])


def test_character_ids_match_the_released_code():
    table = character_ids(["été", "<s>", "x" * 60], {"<s>": 257})
    assert table.shape == (3, 50)
    begin, end, nothing = 259, 260, 261
    assert table[0].tolist() == [begin, *(1 + byte for byte in "été".encode()), end, *[nothing] * 43]
    assert table[1].tolist() == [begin, 257, end, *[nothing] * 47]
    assert table[2].tolist() == [begin, *[1 + ord("x")] * 48, end]


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elmo") / "corpus"
    tiny_corpus(folder, documents=60, seed=1)
    words = tuple(f"w{number}" for number in range(1000))
    special = SpecialTokens(size=1000, end=1, begin=2, words=words, specials=frozenset(range(SPECIALS)))
    return open_mix(
        {str(folder): 1.0}, objective=HEAD, sequence=16, seed=3, special=special, document_mask=False, lanes=6
    )


def test_samples_hold_both_directions(mix):
    [order] = mix.orders
    rows = [[mix.sample(step * 6 + lane) for step in range(order.per_lane)] for lane in range(6)]
    for lane in rows:
        forward = np.concatenate([row["tokens"] for row in lane] + [lane[-1]["labels"][-1:]])
        backward = np.concatenate([row["backwards_tokens"] for row in lane] + [lane[-1]["backwards_labels"][-1:]])
        assert (forward == backward[::-1]).all()
        assert [int(row["reset_state"]) for row in lane] == [1, *[0] * (len(lane) - 1)]
        for row in lane:
            for prefix in ("", "backwards_"):
                assert (row[f"{prefix}labels"][:-1] == row[f"{prefix}tokens"][1:]).all()
                assert (row[f"{prefix}characters"] == vocabulary_spellings(mix.special)[row[f"{prefix}tokens"]]).all()
        # Documents are separated by an end and a begin token, also across samples.
        separators = np.flatnonzero(forward == 1)
        assert len(separators) > 1
        assert (forward[separators[separators < len(forward) - 1] + 1] == 2).all()
        assert (np.diff(np.flatnonzero(forward == 2)) > 5).all()
    for lane_a, lane_b in pairwise(rows):
        assert lane_a[0]["tokens"].tolist() != lane_b[0]["tokens"].tolist()
    assert mix.sample(0)["characters"][0, 1] in (1 + ord("w"), 257, 258)


def test_negatives_are_distinct_and_log_uniform():
    shares = np.log1p(1 / np.arange(1, 201)) / math.log(201)
    samples = [sample_negatives(20, 200, key=str(index)) for index in range(400)]
    assert all(len({*sample.ids.tolist()}) == 20 for sample in samples)
    frequencies = np.bincount(np.concatenate([sample.ids for sample in samples]), minlength=200) / len(samples)
    expected = np.mean([np.exp(sample.log_expected(torch.arange(200)).numpy()) for sample in samples], 0)
    assert np.abs(frequencies - expected).max() < 0.1
    sampled_share = np.exp(samples[0].log_expected(torch.tensor([7])).item())
    assert abs(sampled_share - (1 - (1 - shares[7]) ** samples[0].num_trials)) < 1e-6


def test_sampled_cross_entropy_equals_its_definition():
    generator = torch.Generator().manual_seed(0)
    hidden, table, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 8), (50, 8), (50,))
    )
    labels, negatives = torch.tensor([0, 3, 40, -100, 7]), sample_negatives(12, 50, key="a")
    ids = torch.from_numpy(negatives.ids)
    labels[0] = ids[0]
    targets = labels.clamp(min=0)
    loss = sampled_cross_entropy(
        hidden,
        labels,
        positive=(table[targets], bias[targets]),
        negative=(table[ids], bias[ids]),
        ids_K=ids,
        negatives=negatives,
    )
    total = 0.0
    for row in (0, 1, 2, 4):
        other_words = [word for word in negatives.ids.tolist() if word != labels[row]]
        words = torch.tensor([int(labels[row]), *other_words])
        scores = table[words] @ hidden[row] + bias[words] - negatives.log_expected(words)
        total -= scores.log_softmax(0)[0].item()
    assert loss.item() == pytest.approx(total, rel=1e-5)


def test_scalar_mix_equals_the_formula():
    layers, is_token = (
        torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(0)),
        torch.ones(2, 4, dtype=torch.bool),
    )
    is_token[1, 2:] = False
    mixed, normed = ScalarMix(3), ScalarMix(3, norm=True)
    with torch.no_grad():
        for mix_ in (mixed, normed):
            mix_.weights.copy_(torch.tensor([0.3, -0.7, 1.1]))
            mix_.scale.fill_(1.3)
    shares = np.exp([0.3, -0.7, 1.1]) / np.exp([0.3, -0.7, 1.1]).sum()
    plain = sum(share * layer for share, layer in zip(shares, layers.numpy(), strict=True))
    np.testing.assert_allclose(mixed(layers, is_token).detach(), 1.3 * plain, rtol=1e-5, atol=1e-6)
    states = layers[:, is_token].flatten(1).numpy()
    scaled = (layers.numpy() - states.mean(1)[:, None, None, None]) / states.std(1)[:, None, None, None]
    by_hand = sum(share * layer for share, layer in zip(shares, scaled, strict=True))
    np.testing.assert_allclose(normed(layers, is_token).detach(), 1.3 * by_hand, rtol=1e-4, atol=1e-5)
    assert mixed.penalty(0.5).item() == pytest.approx(0.5 * (0.09 + 0.49 + 1.21))


def test_scalar_mix_penalty_and_dropout():
    """On a task that layer 1 solves alone, a small penalty lets its weight grow, and a large one keeps weights
    equal."""
    generator = torch.Generator().manual_seed(0)
    layers, is_token = torch.randn(3, 4, 5, 6, generator=generator), torch.ones(4, 5, dtype=torch.bool)
    shares = {}
    for strength in (0.001, 10.0):
        mix_ = ScalarMix(3)
        optimizer = torch.optim.Adam(mix_.parameters(), lr=0.1)
        for _ in range(200):
            loss = (mix_(layers, is_token) - layers[1]).square().mean() + mix_.penalty(strength)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        shares[strength] = mix_.weights.softmax(0)
    assert shares[0.001][1] > 0.8
    assert shares[10.0].tolist() == pytest.approx([1 / 3] * 3, abs=0.02)

    torch.manual_seed(0)
    with_dropout, without_dropout = ScalarMix(3, dropout=0.5), ScalarMix(3)
    dropped, plain = with_dropout(layers, is_token), without_dropout(layers, is_token)
    is_retained = dropped != 0
    assert 0.35 < is_retained.float().mean() < 0.65
    torch.testing.assert_close(dropped[is_retained], 2 * plain[is_retained])
    assert with_dropout.eval()(layers, is_token).equal(plain)


@pytest.mark.parametrize("at", [("input",), ("output",), ("input", "output")])
def test_scalar_mix_at_input_and_output(at):
    generator = torch.Generator().manual_seed(0)
    layers, is_token = torch.randn(3, 2, 4, 6, generator=generator), torch.ones(2, 4, dtype=torch.bool)
    x = torch.randn(2, 4, 5, generator=generator)
    task = torch.nn.Linear(11 if "input" in at else 5, 7)
    both = TaskWithLayers(task, 3, at=at)
    with torch.no_grad():
        for number, mix_ in enumerate(both.mixes.values()):
            mix_.weights.copy_(torch.tensor([0.3, -0.7, 1.1]) * (1 - 2 * number))
    mixes = {location: mix_(layers, is_token) for location, mix_ in both.mixes.items()}
    output = task(torch.cat([x, mixes["input"]], -1) if "input" in at else x)
    expected = torch.cat([output, mixes["output"]], -1) if "output" in at else output
    assert both(x, layers, is_token).equal(expected)
    both(x, layers, is_token).square().sum().backward()
    assert all(mix_.weights.grad.abs().max() > 0 for mix_ in both.mixes.values())
    assert both.penalty(0.5).item() == pytest.approx(0.5 * (0.09 + 0.49 + 1.21) * len(at))


@pytest.mark.parametrize("at", [(), ("middle",)])
def test_unknown_mix_location_is_refused(at):
    with pytest.raises(UserError, match="must name the ends of the task model: input, output, or both"):
        TaskWithLayers(torch.nn.Identity(), 3, at=at)


def test_model_learns_with_negatives_and_carried_state():
    model = Model(tiny_elmo())
    init_weights(model, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    table = torch.from_numpy(character_ids([f"{number:03}" for number in range(VOCABULARY)]))[:, :7]
    text = torch.arange(40_000) * 7 % 31
    caches = model.empty_caches(16)
    for step in range(100):
        at = torch.arange(16) * 2000 + step * 8
        rows = text[at[:, None] + torch.arange(9)]
        batch = {}
        for prefix, row in (("", rows), ("backwards_", rows.flip(1))):
            fields = {"tokens": row[:, :-1], "characters": table[row[:, :-1]], "labels": row[:, 1:]}
            batch |= {f"{prefix}{name}": field for name, field in fields.items()}
        model.begin_step(seed=1, step=step)
        loss, number = model(batch, caches=caches).losses[HEAD]
        caches = {stack: stack_cache.after_sequence() for stack, stack_cache in caches.items()}
        optimizer.zero_grad()
        (loss / number).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        loss, number = model(batch, caches=caches).losses[HEAD]
    assert (loss / number).item() < math.log(31) / 2


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("layout.tensor=2", r"layout.tensor \(2\) must be 1: elmo is recurrent"),
        ("layout.pipeline=2", r"layout.pipeline \(2\) must be 1: elmo is recurrent"),
        ("layout.recompute=full", r"layout.recompute \(full\) must be none"),
        ("model.memory=2", r"model.memory \(2\) must be 0 or 1"),
        ("model.head_width=8", r"model.head_width \(8\) is not used by elmo/custom, which is recurrent"),
        ("model.embedding=32", r"model.embedding \(32\) is not used by elmo"),
        ("model.filters=[[1, 4], [51, 4]]", "model.filters has a filter of 51 characters, and words have at most 50"),
        ("model.label_smoothing=0.1", "model.label_smoothing needs the full softmax"),
        ("data.document_mask=true", "set data.document_mask=false"),
        ("objective=continued-causal-lm", "does not fit elmo"),
    ],
)
def test_unsupported_option_is_refused(more, sentence):
    with pytest.raises(UserError, match=sentence):
        load_config("configs/elmo/tiny.yaml", [more])


@pytest.mark.parametrize("name", ["elmo/tiny", "elmo/original", "cove/tiny", "cove/base"])
def test_written_config_is_the_same_model(name):
    config = load_config(f"configs/{name}.yaml", ["model.vocabulary=9000"])
    written = with_resolved_model(config)
    refuse_invalid_config(written)
    assert resolve_model(written) == resolve_model(config)


def test_filters_need_characters():
    with pytest.raises(UserError, match=r"model\.filters .* is not used by gpt2"):
        load_config("configs/gpt2/tiny.yaml", ["model.filters=[[1, 2]]"])


def test_too_many_negatives_are_refused():
    spec = tiny_elmo()
    with pytest.raises(UserError, match=r"model.negatives \(150\) must be less than the vocabulary size \(150\)"):
        Model(replace(spec, family=change(spec.family, loss={"negatives": VOCABULARY})))
