"""ELMo: what directions see and rows read, words as characters, a softmax of drawn words, and that it learns."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from megaptm.config import load, resolve_model
from megaptm.config.check import check
from megaptm.config.model import with_resolved_model
from megaptm.data import open_mix
from megaptm.errors import UserError
from megaptm.families.elmo import ELMO
from megaptm.losses.sampled import sample_negatives, sampled_cross_entropy
from megaptm.models import build_model, fill
from megaptm.models.every_layer import ScalarMix, TaskWithLayers, every_layer, reversed_texts
from megaptm.objectives.spelling import character_ids
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plan.count import count_parameters
from megaptm.spec import change, published
from tests.data.corpora import SPECIALS, tiny_corpus
from tests.models.recurrent import VOCABULARY, elmo_batch, tiny_elmo

HEAD = "bidirectional-lm"


@pytest.mark.parametrize(("size", "number"), [("small", 13_593_312), ("medium", 28_027_744), ("original", 93_600_864)])
def test_the_formula_gives_the_published_count(size, number):
    assert count_parameters(published(ELMO, size)) == number


def model_of(**options):
    model = build_model(tiny_elmo(**options))
    fill(model, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "recurrent" in name or "filters" in name:
                parameter *= 4  # so that what is read weighs
    return model


def test_the_formula_counts_what_is_built():
    model = model_of()
    rows = model.spec.padded_vocabulary - model.spec.vocabulary
    built = sum(parameter.numel() for parameter in model.parameters()) - rows * (model.spec.size.width + 1)
    assert count_parameters(model.spec, with_heads=True) == built


def test_a_direction_sees_what_it_has_read_and_nothing_else():
    """Not the word that it is asked for, and nothing of what the other direction reads."""
    model, batch = model_of().eval(), elmo_batch(2, 9, seed=1)
    with torch.no_grad():
        before = model.logits(batch)[HEAD]
        for number, prefix in enumerate(("", "backwards_")):
            for place in (3, 8):
                letters = batch[f"{prefix}characters"].clone()
                letters[:, place] = 262 - letters[:, place]
                after = model.logits({**batch, f"{prefix}characters": letters})[HEAD]
                moved = (after - before).abs().amax(-1) > 1e-6
                assert not moved[:, 1 - number].any()
                assert moved[:, number].equal((torch.arange(9) >= place).expand(2, -1))


def test_the_way_back_is_the_way_on_with_its_weights():
    model, batch = model_of().eval(), elmo_batch(2, 9, seed=1)
    letters, lengths = batch["characters"], torch.tensor([9, 6])
    with torch.no_grad():
        said = every_layer(model, letters, lengths)
        model.forwards, model.backwards = model.backwards, model.forwards
        turned = every_layer(model, reversed_texts(letters, lengths), lengths)
    width = model.spec.size.width
    for row, length in enumerate(lengths.tolist()):
        back = turned[:, row, :length].flip(1)
        torch.testing.assert_close(said[:, row, :length, width:], back[..., :width])
        torch.testing.assert_close(said[:, row, :length, :width], back[..., width:])


def test_words_are_spelled_as_by_the_released_code():
    table = character_ids(["été", "<s>", "x" * 60], {"<s>": 257})
    assert table.shape == (3, 50)
    begin, end, nothing = 259, 260, 261
    assert table[0].tolist() == [begin, *(1 + byte for byte in "été".encode()), end, *[nothing] * 43]
    assert table[1].tolist() == [begin, 257, end, *[nothing] * 47]
    assert table[2].tolist() == [begin, *[1 + ord("x")] * 48, end]


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    place = tmp_path_factory.mktemp("elmo") / "corpus"
    tiny_corpus(place, documents=60, seed=1)
    words = tuple(f"w{number}" for number in range(1000))
    special = SpecialTokens(size=1000, end=1, begin=2, words=words, specials=frozenset(range(SPECIALS)))
    return open_mix(
        {str(place): 1.0}, objective=HEAD, sequence=16, seed=3, special=special, document_mask=False, lanes=6
    )


def test_rows_read_their_text_from_both_ends(mix):
    [order] = mix.orders
    rows = [[mix.sample(step * 6 + lane) for step in range(order.per_lane)] for lane in range(6)]
    for lane in rows:
        onwards = np.concatenate([row["tokens"] for row in lane] + [lane[-1]["labels"][-1:]])
        back = np.concatenate([row["backwards_tokens"] for row in lane] + [lane[-1]["backwards_labels"][-1:]])
        assert (onwards == back[::-1]).all()
        assert [int(row["reset_state"]) for row in lane] == [1, *[0] * (len(lane) - 1)]
        for row in lane:
            for prefix in ("", "backwards_"):
                assert (row[f"{prefix}labels"][:-1] == row[f"{prefix}tokens"][1:]).all()
                assert (row[f"{prefix}characters"] == mix.special.spellings[row[f"{prefix}tokens"]]).all()
        # Between documents stand an end and a beginning, also where a row is cut between them.
        places = np.flatnonzero(onwards == 1)
        assert len(places) > 1
        assert (onwards[places[places < len(onwards) - 1] + 1] == 2).all()
        assert (np.diff(np.flatnonzero(onwards == 2)) > 5).all()
    for one, other in pairwise(rows):
        assert one[0]["tokens"].tolist() != other[0]["tokens"].tolist()
    assert mix.sample(0)["characters"][0, 1] in (1 + ord("w"), 257, 258)


def test_drawn_words_are_different_and_come_by_rank():
    shares = np.log1p(1 / np.arange(1, 201)) / math.log(201)
    drawn = [sample_negatives(20, 200, key=str(number)) for number in range(400)]
    assert all(len({*one.ids.tolist()}) == 20 for one in drawn)
    seen = np.bincount(np.concatenate([one.ids for one in drawn]), minlength=200) / len(drawn)
    expected = np.mean([np.exp(one.log_expected(torch.arange(200)).numpy()) for one in drawn], 0)
    assert np.abs(seen - expected).max() < 0.1
    sampled_share = np.exp(drawn[0].log_expected(torch.tensor([7])).item())
    assert abs(sampled_share - (1 - (1 - shares[7]) ** drawn[0].num_trials)) < 1e-6


def test_the_loss_of_drawn_words_is_that_of_its_definition():
    generator = torch.Generator().manual_seed(0)
    hidden, table, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 8), (50, 8), (50,))
    )
    labels, drawn = torch.tensor([0, 3, 40, -100, 7]), sample_negatives(12, 50, key="a")
    ids = torch.from_numpy(drawn.ids)
    labels[0] = ids[0]
    asked = labels.clamp(min=0)
    loss = sampled_cross_entropy(
        hidden,
        labels,
        positive=(table[asked], bias[asked]),
        negative=(table[ids], bias[ids]),
        ids_K=ids,
        negatives=drawn,
    )
    total = 0.0
    for row in (0, 1, 2, 4):
        others = [word for word in drawn.ids.tolist() if word != labels[row]]
        words = torch.tensor([int(labels[row]), *others])
        scores = table[words] @ hidden[row] + bias[words] - drawn.log_expected(words)
        total -= scores.log_softmax(0)[0].item()
    assert loss.item() == pytest.approx(total, rel=1e-5)


def test_a_mix_of_layers_is_that_of_the_paper():
    layers, here = (
        torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(0)),
        torch.ones(2, 4, dtype=torch.bool),
    )
    here[1, 2:] = False
    mixed, normed = ScalarMix(3), ScalarMix(3, norm=True)
    with torch.no_grad():
        for mix_ in (mixed, normed):
            mix_.weights.copy_(torch.tensor([0.3, -0.7, 1.1]))
            mix_.scale.fill_(1.3)
    shares = np.exp([0.3, -0.7, 1.1]) / np.exp([0.3, -0.7, 1.1]).sum()
    plain = sum(share * layer for share, layer in zip(shares, layers.numpy(), strict=True))
    np.testing.assert_allclose(mixed(layers, here).detach(), 1.3 * plain, rtol=1e-5, atol=1e-6)
    said = layers[:, here].flatten(1).numpy()
    scaled = (layers.numpy() - said.mean(1)[:, None, None, None]) / said.std(1)[:, None, None, None]
    by_hand = sum(share * layer for share, layer in zip(shares, scaled, strict=True))
    np.testing.assert_allclose(normed(layers, here).detach(), 1.3 * by_hand, rtol=1e-4, atol=1e-5)
    assert mixed.penalty(0.5).item() == pytest.approx(0.5 * (0.09 + 0.49 + 1.21))


def test_what_is_added_to_a_loss_keeps_weights_together_and_dropout_is_on_the_sum():
    """Of a task that one layer alone solves: a small penalty lets it take all, a large one leaves the mean."""
    generator = torch.Generator().manual_seed(0)
    layers, here = torch.randn(3, 4, 5, 6, generator=generator), torch.ones(4, 5, dtype=torch.bool)
    shares = {}
    for strength in (0.001, 10.0):
        mix_ = ScalarMix(3)
        optimizer = torch.optim.Adam(mix_.parameters(), lr=0.1)
        for _ in range(200):
            loss = (mix_(layers, here) - layers[1]).square().mean() + mix_.penalty(strength)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        shares[strength] = mix_.weights.softmax(0)
    assert shares[0.001][1] > 0.8
    assert shares[10.0].tolist() == pytest.approx([1 / 3] * 3, abs=0.02)

    torch.manual_seed(0)
    half, whole = ScalarMix(3, dropout=0.5), ScalarMix(3)
    dropped, plain = half(layers, here), whole(layers, here)
    kept = dropped != 0
    assert 0.35 < kept.float().mean() < 0.65
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])
    assert half.eval()(layers, here).equal(plain)


@pytest.mark.parametrize("at", [("input",), ("output",), ("input", "output")])
def test_a_task_has_a_mix_beside_what_it_reads_and_says(at):
    generator = torch.Generator().manual_seed(0)
    layers, here = torch.randn(3, 2, 4, 6, generator=generator), torch.ones(2, 4, dtype=torch.bool)
    x = torch.randn(2, 4, 5, generator=generator)
    task = torch.nn.Linear(11 if "input" in at else 5, 7)
    both = TaskWithLayers(task, 3, at=at)
    with torch.no_grad():
        for number, mix_ in enumerate(both.mixes.values()):
            mix_.weights.copy_(torch.tensor([0.3, -0.7, 1.1]) * (1 - 2 * number))
    mixes = {place: mix_(layers, here) for place, mix_ in both.mixes.items()}
    said = task(torch.cat([x, mixes["input"]], -1) if "input" in at else x)
    wanted = torch.cat([said, mixes["output"]], -1) if "output" in at else said
    assert both(x, layers, here).equal(wanted)
    both(x, layers, here).square().sum().backward()
    assert all(mix_.weights.grad.abs().max() > 0 for mix_ in both.mixes.values())
    assert both.penalty(0.5).item() == pytest.approx(0.5 * (0.09 + 0.49 + 1.21) * len(at))


@pytest.mark.parametrize("at", [(), ("middle",)])
def test_a_mix_that_is_nowhere_is_refused(at):
    with pytest.raises(UserError, match="a mix of layers is at the input, the output, or both"):
        TaskWithLayers(torch.nn.Identity(), 3, at=at)


def test_it_learns_by_drawn_words_and_with_states_that_go_on():
    model = build_model(tiny_elmo())
    fill(model, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    table = torch.from_numpy(character_ids([f"{number:03}" for number in range(VOCABULARY)]))[:, :7]
    text = torch.arange(40_000) * 7 % 31
    pasts = model.empty_pasts(16)
    for step in range(100):
        at = torch.arange(16) * 2000 + step * 8
        rows = text[at[:, None] + torch.arange(9)]
        batch = {}
        for prefix, row in (("", rows), ("backwards_", rows.flip(1))):
            fields = {"tokens": row[:, :-1], "characters": table[row[:, :-1]], "labels": row[:, 1:]}
            batch |= {f"{prefix}{name}": field for name, field in fields.items()}
        model.begin_step(seed=1, step=step)
        loss, number = model(batch, pasts=pasts).losses[HEAD]
        pasts = {stack: past.moved_on() for stack, past in pasts.items()}
        optimizer.zero_grad()
        (loss / number).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        loss, number = model(batch, pasts=pasts).losses[HEAD]
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
def test_what_it_cannot_honor_is_refused(more, sentence):
    with pytest.raises(UserError, match=sentence):
        load("configs/elmo/tiny.yaml", [more])


@pytest.mark.parametrize("name", ["elmo/tiny", "elmo/original", "cove/tiny", "cove/base"])
def test_what_a_run_writes_down_is_a_config_of_the_same_model(name):
    found = load(f"configs/{name}.yaml", ["model.vocabulary=9000"])
    written = with_resolved_model(found)
    check(written)
    assert resolve_model(written) == resolve_model(found)


def test_words_of_a_table_have_no_filters():
    with pytest.raises(UserError, match=r"model\.filters .* is not used by gpt2"):
        load("configs/gpt2/tiny.yaml", ["model.filters=[[1, 2]]"])


def test_more_drawn_words_than_there_are_are_refused():
    spec = tiny_elmo()
    with pytest.raises(UserError, match=r"model.negatives \(150\) must be less than the 150 words"):
        build_model(replace(spec, family=change(spec.family, negatives=VOCABULARY)))
