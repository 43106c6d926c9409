"""CoVe: its encoder is torch's LSTM over each text of a row, its decoder attends, and a translator learns by both."""

import math
import os
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from megaptm.config import load
from megaptm.errors import UserError
from megaptm.families.cove import COVE
from megaptm.families.cove.mt_lstm import to_mt_lstm
from megaptm.models import build_model, fill
from megaptm.plan.count import count_parameters
from megaptm.spec import ModelSpec, Size, change, published
from megaptm.words.text_file import with_vectors
from tests.models.recurrent import VOCABULARY, tiny_cove

# Of two rows of the encoder and of the decoder, texts of these lengths.
READ, SAID, PLACES = ((5, 3), (7, 0)), ((2, 4), (6, 0)), (9, 7)


def model_of(spec: ModelSpec | None = None):
    model = build_model(tiny_cove() if spec is None else spec)
    fill(model, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.3, 0.3, generator=torch.Generator().manual_seed(len(name)))
            if "recurrent" in name:
                parameter *= 3
    return model


def batch_of():
    """Two texts in the first row, one in the second, with padding."""
    generator, batch = torch.Generator().manual_seed(5), {}
    for prefix, lengths, places in (("", READ, PLACES[0]), ("decoder_", SAID, PLACES[1])):
        batch[f"{prefix}tokens"] = torch.randint(4, VOCABULARY, (2, places), generator=generator)
        numbers = [[1] * one + [2] * two + [0] * (places - one - two) for one, two in lengths]
        batch[f"{prefix}document_ids"] = torch.tensor(numbers)
    labels = torch.randint(4, VOCABULARY, (2, PLACES[1]), generator=generator)
    return batch | {"labels": labels.masked_fill(batch["decoder_document_ids"] == 0, -100)}


def torch_lstm(model):
    lstm = nn.LSTM(model.spec.size.embedding, model.spec.size.ffn, num_layers=2, bidirectional=True)
    lstm.load_state_dict(to_mt_lstm(model.state_dict(), model.spec))
    return lstm


def test_the_encoder_has_as_many_parameters_as_the_published_one():
    spec = published(COVE, "base")
    with torch.device("meta"):
        model = build_model(spec)
    assert sum(parameter.numel() for parameter in model.encoder.parameters()) == 3_609_600
    padding = (spec.padded_vocabulary - spec.vocabulary) * 2 * 300 + spec.padded_vocabulary - spec.vocabulary
    assert count_parameters(spec) == sum(parameter.numel() for parameter in model.parameters()) - padding


def encoded_and_by_torch():
    """Vectors and gradients of the encoder, and torch's, which reads each text by itself, padded and packed; here two
    are in one row."""
    model, batch = model_of().eval(), batch_of()
    x_BSD = model.encode(batch)
    rows = batch["tokens"]
    texts = [rows[0, :5], rows[0, 5:8], rows[1, :7]]
    lstm, table = torch_lstm(model), model.embed.token.weight.detach()
    padded = nn.utils.rnn.pad_sequence([table[text] for text in texts])
    packed = pack_padded_sequence(padded, torch.tensor([5, 3, 7]), enforce_sorted=False)
    theirs, _ = pad_packed_sequence(lstm(packed)[0])
    ours = torch.cat([x_BSD[0, :5], x_BSD[0, 5:8], x_BSD[1, :7]])
    expected = torch.cat([theirs[:5, 0], theirs[:3, 1], theirs[:7, 2]])
    ours.square().sum().backward()
    expected.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if name.startswith("encoder")}
    found = to_mt_lstm(gradients, model.spec)
    return (ours, expected), [(found[name], parameter.grad) for name, parameter in lstm.named_parameters()]


def differences():
    """The largest of a vector, and of a gradient."""
    (ours, expected), gradients = encoded_and_by_torch()
    return (ours - expected).abs().max().item(), max((one - other).abs().max().item() for one, other in gradients)


def test_what_is_encoded_and_its_gradients_are_those_of_torchs_lstm():
    (ours, expected), gradients = encoded_and_by_torch()
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    assert len(gradients) == 16
    for one, other in gradients:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_decoder_is_that_of_the_paper():
    """Written out with torch's cells: the first reads a word and what attention made before (arXiv:1708.00107, 3)."""
    model, batch = model_of().eval(), batch_of()
    logits = model.logits(batch)["lm"]
    memory_BMD, weights, width = model.encode(batch), model.state_dict(), model.spec.size_of("decoder").width
    cells = []
    for layer, name in enumerate(("decoder.0.recurrent.lstm", "decoder.1.recurrent")):
        cell = nn.LSTMCell(model.spec.size.embedding + width if layer == 0 else width, width)
        parts = zip(
            ("weight_ih", "bias_ih", "weight_hh", "bias_hh"),
            ("input.weight", "input.bias", "state.weight", "state.bias"),
            strict=True,
        )
        cell.load_state_dict({theirs: weights[f"{name}.{ours}"] for theirs, ours in parts})
        cells.append(cell)
    attention = "decoder.0.recurrent.attention"
    for row, at, length, read in ((0, 0, 2, slice(0, 5)), (0, 2, 4, slice(5, 8)), (1, 0, 6, slice(0, 7))):
        states, fed = [(torch.zeros(width), torch.zeros(width))] * 2, torch.zeros(width)
        for place in range(at, at + length):
            seen = torch.cat([weights["embed.token.weight"][batch["decoder_tokens"][row, place]], fed])
            for layer, cell in enumerate(cells):
                states[layer] = cell(seen, states[layer])
                seen = states[layer][0]
            query = F.linear(seen, weights[f"{attention}.query.weight"], weights[f"{attention}.query.bias"])
            memory = memory_BMD[row, read]
            context = (memory @ query).softmax(0) @ memory
            both = torch.cat([context, seen])
            fed = torch.tanh(F.linear(both, weights[f"{attention}.merge.weight"], weights[f"{attention}.merge.bias"]))
            said = F.linear(fed, weights["head.lm.table.weight"], weights["head.lm.vocabulary.bias"])[:VOCABULARY]
            torch.testing.assert_close(logits[row, place], said, rtol=1e-5, atol=1e-5)


def test_a_decoder_sees_what_it_has_said_and_its_own_source():
    model, batch = model_of().eval(), batch_of()
    with torch.no_grad():
        before = model.logits(batch)["lm"]

        def moved(field, row, place):
            changed = batch[field].clone()
            changed[row, place] = 4 + (changed[row, place] - 3) % (VOCABULARY - 4)
            gap = (model.logits({**batch, field: changed})["lm"] - before).abs().amax(-1) > 1e-7
            return [numbers.nonzero().flatten().tolist() for numbers in gap & (batch["decoder_document_ids"] > 0)]

        assert moved("decoder_tokens", 0, 1) == [[1], []]
        assert moved("decoder_tokens", 0, 3) == [[3, 4, 5], []]
        assert moved("tokens", 0, 6) == [[2, 3, 4, 5], []]
        assert moved("tokens", 1, 6) == [[], [0, 1, 2, 3, 4, 5]]


@cache
def translator():
    """One that has learned to turn texts of four of eight words round, and its last loss."""
    size = Size(
        layers=1,
        width=48,
        heads=1,
        ffn=24,
        embedding=24,
        stacks={"decoder": Size(layers=1, width=24, heads=1, ffn=24, embedding=24)},
    )
    model = model_of(replace(tiny_cove(), size=size, vocabulary=20))
    optimizer, generator = torch.optim.Adam(model.parameters(), lr=0.01), torch.Generator().manual_seed(0)
    for _ in range(150):
        words = torch.randint(4, 12, (32, 4), generator=generator)
        answer = words.flip(1)
        start = torch.zeros(32, 1, dtype=torch.int64)
        loss, number = model(
            {"tokens": words, "decoder_tokens": torch.cat([start, answer[:, :-1]], 1), "labels": answer}
        ).losses["lm"]
        optimizer.zero_grad()
        (loss / number).backward()
        optimizer.step()
    return model.eval(), (loss / number).item()


def test_a_translator_learns_to_turn_texts_round():
    """Better than one that copies, and than one that knows how often words come: by attention."""
    assert translator()[1] < math.log(8) / 2


def test_frozen_features_tell_what_vectors_of_words_alone_do_not():
    """Of each word, whether the one before it is of the first half of the words: by a linear map of its vector, and of
    its vector and what the encoder says beside it (arXiv:1708.00107, 4)."""
    model, generator = translator()[0], torch.Generator().manual_seed(1)
    words = torch.randint(4, 12, (600, 4), generator=generator)
    with torch.no_grad():
        vectors, encoded = model.embed.token.weight[words], model.encode({"tokens": words})
    asked = (words[:, :-1] < 8).float().flatten() * 2 - 1

    def right(features: torch.Tensor) -> float:
        """The share of fresh texts."""
        x = F.pad(features[:, 1:].flatten(0, 1), (0, 1), value=1.0)
        half = len(x) // 2
        found = torch.linalg.lstsq(x[:half].double(), asked[:half, None].double(), driver="gelsd").solution
        return float((x[half:].double() @ found * asked[half:, None] > 0).double().mean())

    assert right(vectors) < 0.6
    assert right(torch.cat([vectors, encoded], -1)) > 0.8


def test_what_it_cannot_honor_is_refused():
    for more, sentence in (
        ("layout.tensor=2", r"layout.tensor \(2\) must be 1: cove is recurrent"),
        ("layout.pipeline=2", r"layout.pipeline \(2\) must be 1: cove is recurrent"),
        ("model.memory=1", r"model.memory \(1\) is not used by cove"),
        ("objective=causal-lm", "does not fit cove"),
    ):
        with pytest.raises(UserError, match=sentence):
            load("configs/cove/tiny.yaml", [more])
    spec = tiny_cove()
    with pytest.raises(UserError, match=r"width is 20, but the output of lstm-both-ways is 2 x 12 wide"):
        build_model(replace(spec, size=change(spec.size, width=20)))


def test_words_begin_with_vectors_of_a_file(tmp_path):
    table, names = torch.zeros(4, 2), ["a", "b", "new york", "c"]
    (tmp_path / "glove.txt").write_text("b 0.5 -1\nnew york 2 3\nz 9 9\n")
    (tmp_path / "word2vec.txt").write_text("1 2\nc 1 1e-3\n")
    assert with_vectors(table, str(tmp_path / "glove.txt"), names).tolist() == [[0, 0], [0.5, -1], [2, 3], [0, 0]]
    assert with_vectors(table, str(tmp_path / "word2vec.txt"), names)[3].tolist() == pytest.approx([1, 1e-3])
    (tmp_path / "short.txt").write_text("b 0.5 -1\na 1\n")
    (tmp_path / "words.txt").write_text("b so much\n")
    (tmp_path / "others.txt").write_text("z 9 9\n")
    (tmp_path / "wide.txt").write_text("b 0.5 -1 2\n")
    (tmp_path / "wide heading.txt").write_text("1 3\nb 0.5 -1 2\n")
    (tmp_path / "packed.txt").write_text("b" * (1 << 20))
    for name, sentence in (
        ("short", "line 2 of .* has 1 numbers, but model.embedding is 2"),
        ("wide", "line 1 of .* has 3 numbers, but model.embedding is 2: give a text file of vectors of that width"),
        ("wide heading", "line 2 of .* has 3 numbers"),
        ("packed", "line 1 of .* is not a word and its numbers"),
        ("words", "line 1 of .* is not a word and its numbers"),
        ("others", "has none of the 4 words"),
        ("absent", "cannot be read"),
    ):
        with pytest.raises(UserError, match=f"model.word_vectors.*{sentence}"):
            with_vectors(table, str(tmp_path / f"{name}.txt"), names)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        UserError, match=r"model\.word_vectors .* cannot be read \(Not a regular file\)"
    ):  # without waiting for who writes to it
        with_vectors(table, str(tmp_path / "pipe"), names)
    with pytest.raises(UserError, match=r"model\.word_vectors .* is not used by elmo"):
        load("configs/elmo/tiny.yaml", ["model.word_vectors=glove.txt"])
