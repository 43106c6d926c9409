"""CoVe: equality of encoder and decoder with torch's LSTM, features, training, and word vectors from a file."""

import math
import os
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.families.cove import COVE
from megaptm.families.cove.mt_lstm import to_mt_lstm
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.plan.count import count_parameters
from megaptm.run.word_vector_file import with_word_vectors
from megaptm.spec import ModelSpec, Size, change, published_spec
from tests.models.recurrent import VOCABULARY, tiny_cove

# Document lengths of two samples, for the encoder and the decoder.
SOURCE_LENGTHS, TARGET_LENGTHS, WIDTHS = ((5, 3), (7, 0)), ((2, 4), (6, 0)), (9, 7)


def build_tiny_model(spec: ModelSpec | None = None):
    model = Model(tiny_cove() if spec is None else spec)
    init_weights(model, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.3, 0.3, generator=torch.Generator().manual_seed(len(name)))
            if "recurrent" in name:
                parameter *= 3
    return model


def make_batch():
    """Return a batch with two documents in the first sample, one in the second, and padding."""
    generator, batch = torch.Generator().manual_seed(5), {}
    for prefix, lengths, width in (("", SOURCE_LENGTHS, WIDTHS[0]), ("decoder_", TARGET_LENGTHS, WIDTHS[1])):
        batch[f"{prefix}tokens"] = torch.randint(4, VOCABULARY, (2, width), generator=generator)
        document_ids = [[1] * first + [2] * second + [0] * (width - first - second) for first, second in lengths]
        batch[f"{prefix}document_ids"] = torch.tensor(document_ids)
    labels = torch.randint(4, VOCABULARY, (2, WIDTHS[1]), generator=generator)
    return batch | {"labels": labels.masked_fill(batch["decoder_document_ids"] == 0, -100)}


def torch_lstm(model):
    lstm = nn.LSTM(model.spec.size.embedding, model.spec.size.ffn, num_layers=2, bidirectional=True)
    lstm.load_state_dict(to_mt_lstm(model.state_dict(), model.spec))
    return lstm


def test_published_encoder_parameter_count():
    spec = published_spec(COVE, "base")
    with torch.device("meta"):
        model = Model(spec)
    assert sum(parameter.numel() for parameter in model.encoder.parameters()) == 3_609_600
    padding = (spec.padded_vocabulary - spec.vocabulary) * 2 * 300 + spec.padded_vocabulary - spec.vocabulary
    assert count_parameters(spec) == sum(parameter.numel() for parameter in model.parameters()) - padding


def encode_with_both():
    """Return hidden states and gradients of the encoder, and those of torch's LSTM. For torch each document is a
    sample."""
    model, batch = build_tiny_model().eval(), make_batch()
    x_BSD = model.encode(batch)
    rows = batch["tokens"]
    texts = [rows[0, :5], rows[0, 5:8], rows[1, :7]]
    lstm, table = torch_lstm(model), model.embed.token.weight.detach()
    padded = nn.utils.rnn.pad_sequence([table[text] for text in texts])
    packed = pack_padded_sequence(padded, torch.tensor([5, 3, 7]), enforce_sorted=False)
    padded_output, _ = pad_packed_sequence(lstm(packed)[0])
    actual = torch.cat([x_BSD[0, :5], x_BSD[0, 5:8], x_BSD[1, :7]])
    expected = torch.cat([padded_output[:5, 0], padded_output[:3, 1], padded_output[:7, 2]])
    actual.square().sum().backward()
    expected.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if name.startswith("encoder")}
    converted = to_mt_lstm(gradients, model.spec)
    return (actual, expected), [(converted[name], parameter.grad) for name, parameter in lstm.named_parameters()]


def differences():
    """Return the largest difference of hidden states, and that of gradients."""
    (actual, expected), gradients = encode_with_both()
    return (actual - expected).abs().max().item(), max(
        (gradient - reference).abs().max().item() for gradient, reference in gradients
    )


def test_encoder_equals_torch_lstm():
    (actual, expected), gradients = encode_with_both()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    assert len(gradients) == 16
    for gradient, reference in gradients:
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-6)


def test_decoder_equals_the_formulas():
    """Formulas of arXiv:1708.00107, section 3, with torch's cells. The first cell also reads the previous attention
    output."""
    model, batch = build_tiny_model().eval(), make_batch()
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
        cell.load_state_dict({torch_name: weights[f"{name}.{own_name}"] for torch_name, own_name in parts})
        cells.append(cell)
    attention = "decoder.0.recurrent.attention"
    for row, start, length, source in ((0, 0, 2, slice(0, 5)), (0, 2, 4, slice(5, 8)), (1, 0, 6, slice(0, 7))):
        states, fed = [(torch.zeros(width), torch.zeros(width))] * 2, torch.zeros(width)
        for position in range(start, start + length):
            x = torch.cat([weights["embed.token.weight"][batch["decoder_tokens"][row, position]], fed])
            for layer, cell in enumerate(cells):
                states[layer] = cell(x, states[layer])
                x = states[layer][0]
            query = F.linear(x, weights[f"{attention}.query.weight"], weights[f"{attention}.query.bias"])
            memory = memory_BMD[row, source]
            context = (memory @ query).softmax(0) @ memory
            both = torch.cat([context, x])
            fed = torch.tanh(F.linear(both, weights[f"{attention}.merge.weight"], weights[f"{attention}.merge.bias"]))
            expected = F.linear(fed, weights["head.lm.table.weight"], weights["head.lm.vocabulary.bias"])[:VOCABULARY]
            torch.testing.assert_close(logits[row, position], expected, rtol=1e-5, atol=1e-5)


def test_decoder_attends_to_its_prefix_and_source():
    model, batch = build_tiny_model().eval(), make_batch()
    with torch.no_grad():
        before = model.logits(batch)["lm"]

        def changed_positions(field, row, position):
            changed = batch[field].clone()
            changed[row, position] = 4 + (changed[row, position] - 3) % (VOCABULARY - 4)
            gap = (model.logits({**batch, field: changed})["lm"] - before).abs().amax(-1) > 1e-7
            return [
                row_changed.nonzero().flatten().tolist() for row_changed in gap & (batch["decoder_document_ids"] > 0)
            ]

        assert changed_positions("decoder_tokens", 0, 1) == [[1], []]
        assert changed_positions("decoder_tokens", 0, 3) == [[3, 4, 5], []]
        assert changed_positions("tokens", 0, 6) == [[2, 3, 4, 5], []]
        assert changed_positions("tokens", 1, 6) == [[], [0, 1, 2, 3, 4, 5]]


@cache
def trained_translator():
    """Return a model that was trained to reverse texts of four words, and its last loss."""
    size = Size(
        layers=1,
        width=48,
        heads=1,
        ffn=24,
        embedding=24,
        stacks={"decoder": Size(layers=1, width=24, heads=1, ffn=24, embedding=24)},
    )
    model = build_tiny_model(replace(tiny_cove(), size=size, vocabulary=20))
    optimizer, generator = torch.optim.Adam(model.parameters(), lr=0.01), torch.Generator().manual_seed(0)
    for _ in range(150):
        words = torch.randint(4, 12, (32, 4), generator=generator)
        target = words.flip(1)
        start = torch.zeros(32, 1, dtype=torch.int64)
        loss, num_labels = model(
            {"tokens": words, "decoder_tokens": torch.cat([start, target[:, :-1]], 1), "labels": target}
        ).losses["lm"]
        optimizer.zero_grad()
        (loss / num_labels).backward()
        optimizer.step()
    return model.eval(), (loss / num_labels).item()


def test_model_learns_to_reverse_texts():
    """Half the loss of uniform predictions needs attention."""
    assert trained_translator()[1] < math.log(8) / 2


def test_frozen_features_beat_word_vectors():
    """A linear classifier of frozen features tells whether the previous word is in the first half of the vocabulary
    (arXiv:1708.00107, section 4). Word vectors alone do not contain it."""
    model, generator = trained_translator()[0], torch.Generator().manual_seed(1)
    words = torch.randint(4, 12, (600, 4), generator=generator)
    with torch.no_grad():
        vectors, encoded = model.embed.token.weight[words], model.encode({"tokens": words})
    labels = (words[:, :-1] < 8).float().flatten() * 2 - 1

    def accuracy(features: torch.Tensor) -> float:
        """Return the accuracy on the second half of texts."""
        x = F.pad(features[:, 1:].flatten(0, 1), (0, 1), value=1.0)
        half = len(x) // 2
        solution = torch.linalg.lstsq(x[:half].double(), labels[:half, None].double(), driver="gelsd").solution
        return float((x[half:].double() @ solution * labels[half:, None] > 0).double().mean())

    assert accuracy(vectors) < 0.6
    assert accuracy(torch.cat([vectors, encoded], -1)) > 0.8


def test_unsupported_option_is_refused():
    for more, sentence in (
        ("layout.tensor=2", r"layout.tensor \(2\) must be 1: cove is recurrent"),
        ("layout.pipeline=2", r"layout.pipeline \(2\) must be 1: cove is recurrent"),
        ("model.memory=1", r"model.memory \(1\) is not used by cove"),
        ("objective=causal-lm", "does not fit cove"),
    ):
        with pytest.raises(UserError, match=sentence):
            load_config("configs/cove/tiny.yaml", [more])
    spec = tiny_cove()
    with pytest.raises(UserError, match=r"width is 20, but the output of bidirectional-lstm is 2 x 12 wide"):
        Model(replace(spec, size=change(spec.size, width=20)))


def test_word_vectors_are_read_from_a_file(tmp_path):
    table, names = torch.zeros(4, 2), ["a", "b", "new york", "c"]
    (tmp_path / "glove.txt").write_text("b 0.5 -1\nnew york 2 3\nz 9 9\n")
    (tmp_path / "word2vec.txt").write_text("1 2\nc 1 1e-3\n")
    assert with_word_vectors(table, str(tmp_path / "glove.txt"), names).tolist() == [[0, 0], [0.5, -1], [2, 3], [0, 0]]
    assert with_word_vectors(table, str(tmp_path / "word2vec.txt"), names)[3].tolist() == pytest.approx([1, 1e-3])
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
            with_word_vectors(table, str(tmp_path / f"{name}.txt"), names)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        UserError, match=r"model\.word_vectors .* cannot be read \(Not a regular file\)"
    ):  # without waiting for a writer
        with_word_vectors(table, str(tmp_path / "pipe"), names)
    with pytest.raises(UserError, match=r"model\.word_vectors .* is not used by elmo"):
        load_config("configs/elmo/tiny.yaml", ["model.word_vectors=glove.txt"])
