"""XLNet: attention of queries and content stream, recurrence cache and directions compared with Hugging Face,
training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from megaptm.families import CATALOGUE
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size, change
from tests.models.tiny import VOCABULARY, tiny_batch, tiny_model
from tests.parity.reference import convert_inputs_with_queries, make_reference

LENGTH, POSITIONS = 12, (1, 4, 7, 10)


def make_batch(number: int = 2, *, seed: int = 0) -> dict[str, Tensor]:
    """Return samples with a random order each, and with labels at `POSITIONS`."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(LENGTH, generator=generator) for _ in range(number)])
    return {
        "tokens": torch.randint(1, VOCABULARY, (number, LENGTH), generator=generator),
        "order": order,
        "segments": (torch.arange(LENGTH) * 3 // LENGTH).expand(number, -1).clone(),
        "masked_positions": torch.tensor(POSITIONS).expand(number, -1).clone(),
    }


def both_logits(model: Model, batch: dict[str, Tensor], **caches: Any) -> Tensor:
    """Return the logits of content stream and query stream, [B, S + A, V]."""
    unlabeled = {name: field for name, field in batch.items() if name != "labels"}
    return model(unlabeled, **caches).logits["permutation-lm"]


def query_logits(model: Model, batch: dict[str, Tensor]) -> Tensor:
    """Return the logits [B, A, V] of the query stream."""
    with torch.no_grad():
        return both_logits(model, batch)[:, batch["tokens"].shape[1] :]


def test_query_attends_to_earlier_tokens_of_the_order() -> None:
    model, batch = tiny_model("xlnet"), make_batch()
    before = query_logits(model, batch)
    for position in range(LENGTH):
        tokens = batch["tokens"].clone()
        tokens[:, position] = tokens[:, position] % (VOCABULARY - 1) + 1
        changed = (query_logits(model, batch | {"tokens": tokens}) - before).abs().amax(-1) > 1e-6
        at = batch["order"].gather(1, batch["masked_positions"])
        assert changed.equal(batch["order"][:, position : position + 1] < at)


def test_order_of_figure_1() -> None:
    """Example of the paper's figure 1."""
    model, words = tiny_model("xlnet"), torch.tensor([[11, 12, 13, 14]])
    batch = {"tokens": words, "order": torch.tensor([[3, 0, 2, 1]]), "masked_positions": torch.tensor([[2]])}
    before = query_logits(model, batch)
    attended = [
        position + 1
        for position in range(4)
        if not query_logits(model, batch | {"tokens": words + torch.eye(4, dtype=torch.long)[position]}).equal(before)
    ]
    assert attended == [2, 4]


def test_content_stream_attends_to_itself_and_earlier_tokens() -> None:
    model, batch = tiny_model("xlnet"), make_batch()
    with torch.no_grad():
        before = model.logits(batch)["permutation-lm"]
        for position in range(LENGTH):
            tokens = batch["tokens"].clone()
            tokens[:, position] = tokens[:, position] % (VOCABULARY - 1) + 1
            changed = (model.logits(batch | {"tokens": tokens})["permutation-lm"] - before).abs().amax(-1) > 1e-6
            assert changed.equal(batch["order"] >= batch["order"][:, position : position + 1])


def test_queries_do_not_change_the_content_stream() -> None:
    model, batch = tiny_model("xlnet"), make_batch()
    with torch.no_grad():
        beside = both_logits(model, batch)[:, :LENGTH]
        torch.testing.assert_close(beside, model.logits(batch)["permutation-lm"], rtol=0, atol=1e-6)


def test_first_query_attends_to_nothing() -> None:
    """In Hugging Face's model its mask has no effect, since the softmax is over masked positions only."""
    model, batch = tiny_model("xlnet"), make_batch(1)
    batch["order"] = torch.arange(LENGTH)[None]
    batch["masked_positions"] = torch.tensor([[0, 5]])
    first, other = query_logits(model, batch), query_logits(model, batch | {"tokens": batch["tokens"].flip(1)})
    assert first[0, 0].isfinite().all()
    assert first[0, 0].equal(other[0, 0])
    assert not first[0, 1].allclose(other[0, 1], atol=1e-3)


def test_text_order_is_a_causal_model() -> None:
    """A causal stack with the same weights, whose queries are the tokens themselves, gives equal logits."""
    model, batch = tiny_model("xlnet"), make_batch()
    batch["order"] = torch.arange(LENGTH).expand(2, -1)
    causal = change(CATALOGUE["xlnet"].last_block, visibility="causal")
    family = change(CATALOGUE["xlnet"], stacks={"encoder": causal})
    size = model.spec.size
    spec = ModelSpec(family=family, size=size, vocabulary=VOCABULARY, context=24, dropout=0.0)
    other = Model(spec)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        logits, left_to_right = (each.eval().logits(batch)["permutation-lm"] for each in (model, other))
    torch.testing.assert_close(logits, left_to_right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("queries", [False, True])
def test_recurrence_cache_matches_hugging_face(queries: bool) -> None:
    model = tiny_model("xlnet")
    reference = make_reference(model)
    reference.transformer.mem_len, reference.transformer.reuse_len = 9, LENGTH // 2
    caches, mems = model.empty_caches(2, num_positions=9), None
    for seed in range(3):
        batch = make_batch(seed=seed) | {"labels": torch.ones(2, len(POSITIONS), dtype=torch.long)}
        batch["order"] = torch.arange(LENGTH).flip(0).expand(2, -1)
        batch["document_ids"] = torch.ones_like(batch["tokens"])
        inputs = convert_inputs_with_queries("xlnet", batch)
        del batch["document_ids"], inputs["attention_mask"]
        if not queries:
            del inputs["target_mapping"]
        with torch.no_grad():
            output = reference(**inputs, mems=mems, use_mems=True)
            logits = both_logits(model, batch, caches=caches)
        expected = logits[:, LENGTH:] if queries else logits[:, :LENGTH]
        torch.testing.assert_close(expected, output.logits, rtol=0, atol=1e-5)
        caches, mems = {name: stack_cache.after_sequence() for name, stack_cache in caches.items()}, output.mems
        for layer, state in caches["encoder"].states.items():
            torch.testing.assert_close(state[-len(mems[layer]) :], mems[layer], rtol=0, atol=1e-5)


def test_backward_samples_have_reversed_distances() -> None:
    """Hugging Face reverses the second half of a batch if `bi_data` is set."""
    model, batch = tiny_model("xlnet"), make_batch(4)
    reference = make_reference(model)
    reference.transformer.bi_data = True
    batch["order"] = torch.arange(LENGTH).flip(0).expand(4, -1)
    batch |= {"labels": torch.ones(4, len(POSITIONS), dtype=torch.long), "backward": torch.tensor([0, 0, 1, 1])}
    inputs = convert_inputs_with_queries("xlnet", batch | {"document_ids": torch.ones_like(batch["tokens"])})
    with torch.no_grad():
        torch.testing.assert_close(query_logits(model, batch), reference(**inputs).logits, rtol=0, atol=1e-5)
    forward = query_logits(model, batch | {"backward": torch.zeros(4, dtype=torch.long)})
    assert (forward - query_logits(model, batch))[2:].abs().max() > 1e-2


def test_segments_count_only_as_same_or_different() -> None:
    model, batch = tiny_model("xlnet"), make_batch()
    renamed = torch.tensor([5, 0, 9])[batch["segments"]]
    torch.testing.assert_close(
        query_logits(model, batch | {"segments": renamed}), query_logits(model, batch), rtol=0, atol=1e-6
    )
    one_segment = query_logits(model, batch | {"segments": torch.zeros_like(renamed)})
    assert (one_segment - query_logits(model, batch)).abs().max() > 1e-2


def test_model_learns_with_queries() -> None:
    """Each token repeats the one two positions before it."""
    family = change(CATALOGUE["xlnet"], init={"rule": "glorot"})
    size = Size(layers=2, width=32, heads=4, ffn=64)
    model = Model(ModelSpec(family=family, size=size, vocabulary=20, context=12, dropout=0.0))
    init_weights(model, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator, losses = torch.Generator().manual_seed(3), []
    for _ in range(80):
        tokens = torch.randint(20, (16, 2), generator=generator).repeat(1, 6)
        positions = torch.tensor([2, 7, 9]).expand(16, -1)
        order = torch.zeros(16, 12, dtype=torch.long).scatter(1, positions, torch.tensor([1, 2, 3]).expand(16, -1))
        batch = {"tokens": tokens, "order": order, "masked_positions": positions, "labels": tokens.gather(1, positions)}
        batch["segments"] = torch.zeros_like(tokens)
        loss, count = model(batch).losses["permutation-lm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append(float((loss / count).detach()))
    assert sum(losses[-10:]) / 10 < 1.0


def test_batch_without_order_is_refused() -> None:
    batch = tiny_batch("xlnet")
    del batch["order"]
    with pytest.raises(Exception, match="has no order"):
        tiny_model("xlnet")(batch)
