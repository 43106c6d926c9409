"""XLNet: what queries beside the text see, and what they do not; its memory and its two directions beside Hugging
Face's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from megaptm.families import CATALOGUE
from megaptm.models import Model, build_model, fill
from megaptm.spec import ModelSpec, Size, change
from tests.models.tiny import VOCABULARY, tiny_batch, tiny_model
from tests.parity.reference import inputs_with_queries, reference_of

LENGTH, PLACES = 12, (1, 4, 7, 10)


def rows(number: int = 2, *, seed: int = 0) -> dict[str, Tensor]:
    """A permutation for each row; some places are asked."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(LENGTH, generator=generator) for _ in range(number)])
    return {
        "tokens": torch.randint(1, VOCABULARY, (number, LENGTH), generator=generator),
        "order": order,
        "segments": (torch.arange(LENGTH) * 3 // LENGTH).expand(number, -1).clone(),
        "masked_positions": torch.tensor(PLACES).expand(number, -1).clone(),
    }


def asked(model: Model, batch: dict[str, Tensor]) -> Tensor:
    """What the queries say, [B, A, V]."""
    with torch.no_grad():
        return model.asked_logits(batch)["permutation-lm"][:, batch["tokens"].shape[1] :]


def test_a_query_sees_what_is_before_it_in_the_order_and_never_itself() -> None:
    model, batch = tiny_model("xlnet"), rows()
    before = asked(model, batch)
    for place in range(LENGTH):
        tokens = batch["tokens"].clone()
        tokens[:, place] = tokens[:, place] % (VOCABULARY - 1) + 1
        moved = (asked(model, batch | {"tokens": tokens}) - before).abs().amax(-1) > 1e-6
        at = batch["order"].gather(1, batch["masked_positions"])
        assert moved.equal(batch["order"][:, place : place + 1] < at)


def test_in_the_order_2_4_3_1_the_third_word_is_guessed_from_the_second_and_the_fourth() -> None:
    """The example of the paper's figure 1, with the places that words have in the text."""
    model, words = tiny_model("xlnet"), torch.tensor([[11, 12, 13, 14]])
    batch = {"tokens": words, "order": torch.tensor([[3, 0, 2, 1]]), "masked_positions": torch.tensor([[2]])}
    before = asked(model, batch)
    seen = [
        place + 1
        for place in range(4)
        if not asked(model, batch | {"tokens": words + torch.eye(4, dtype=torch.long)[place]}).equal(before)
    ]
    assert seen == [2, 4]


def test_the_text_sees_what_is_not_after_it_in_the_order() -> None:
    model, batch = tiny_model("xlnet"), rows()
    with torch.no_grad():
        before = model.logits(batch)["permutation-lm"]
        for place in range(LENGTH):
            tokens = batch["tokens"].clone()
            tokens[:, place] = tokens[:, place] % (VOCABULARY - 1) + 1
            moved = (model.logits(batch | {"tokens": tokens})["permutation-lm"] - before).abs().amax(-1) > 1e-6
            assert moved.equal(batch["order"] >= batch["order"][:, place : place + 1])


def test_queries_change_nothing_of_the_text() -> None:
    model, batch = tiny_model("xlnet"), rows()
    with torch.no_grad():
        beside = model.asked_logits(batch)["permutation-lm"][:, :LENGTH]
        torch.testing.assert_close(beside, model.logits(batch)["permutation-lm"], rtol=0, atol=1e-6)


def test_the_first_of_an_order_that_sees_nothing_says_the_same_of_every_text() -> None:
    """Hugging Face's would see all of it, itself too: a softmax of nothing but what is hidden."""
    model, batch = tiny_model("xlnet"), rows(1)
    batch["order"] = torch.arange(LENGTH)[None]
    batch["masked_positions"] = torch.tensor([[0, 5]])
    first, other = asked(model, batch), asked(model, batch | {"tokens": batch["tokens"].flip(1)})
    assert first[0, 0].isfinite().all()
    assert first[0, 0].equal(other[0, 0])
    assert not first[0, 1].allclose(other[0, 1], atol=1e-3)


def test_by_the_order_of_the_text_the_text_is_a_left_to_right_model() -> None:
    """With the same weights in a causal stack, whose queries are the text itself."""
    model, batch = tiny_model("xlnet"), rows()
    batch["order"] = torch.arange(LENGTH).expand(2, -1)
    causal = change(CATALOGUE["xlnet"].last_block, visibility="causal")
    family = change(CATALOGUE["xlnet"], stacks={"encoder": causal})
    size = model.spec.size
    spec = ModelSpec(family=family, size=size, vocabulary=VOCABULARY, context=24, dropout=0.0)
    other = build_model(spec)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        said, left_to_right = (one.eval().logits(batch)["permutation-lm"] for one in (model, other))
    torch.testing.assert_close(said, left_to_right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("queries", [False, True])
def test_memory_over_three_rows_is_that_of_hugging_face(queries: bool) -> None:
    model = tiny_model("xlnet")
    theirs = reference_of(model)
    theirs.transformer.mem_len, theirs.transformer.reuse_len = 9, LENGTH // 2
    pasts, mems = model.empty_pasts(2, places=9), None
    for seed in range(3):
        batch = rows(seed=seed) | {"labels": torch.ones(2, len(PLACES), dtype=torch.long)}
        batch["order"] = torch.arange(LENGTH).flip(0).expand(2, -1)
        batch["document_ids"] = torch.ones_like(batch["tokens"])
        inputs = inputs_with_queries("xlnet", batch)
        del batch["document_ids"], inputs["attention_mask"]
        if not queries:
            del inputs["target_mapping"]
        with torch.no_grad():
            said = theirs(**inputs, mems=mems, use_mems=True)
            ours = model.asked_logits(batch, pasts=pasts)["permutation-lm"]
        expected = ours[:, LENGTH:] if queries else ours[:, :LENGTH]
        torch.testing.assert_close(expected, said.logits, rtol=0, atol=1e-5)
        pasts, mems = {name: past.moved_on() for name, past in pasts.items()}, said.mems
        for layer, state in pasts["encoder"].states.items():
            torch.testing.assert_close(state[-len(mems[layer]) :], mems[layer], rtol=0, atol=1e-5)


def test_a_row_that_is_read_from_its_end_has_its_distances_the_other_way() -> None:
    """As Hugging Face's of the second half of a batch, with `bi_data`."""
    model, batch = tiny_model("xlnet"), rows(4)
    theirs = reference_of(model)
    theirs.transformer.bi_data = True
    batch["order"] = torch.arange(LENGTH).flip(0).expand(4, -1)
    batch |= {"labels": torch.ones(4, len(PLACES), dtype=torch.long), "backward": torch.tensor([0, 0, 1, 1])}
    inputs = inputs_with_queries("xlnet", batch | {"document_ids": torch.ones_like(batch["tokens"])})
    with torch.no_grad():
        torch.testing.assert_close(asked(model, batch), theirs(**inputs).logits, rtol=0, atol=1e-5)
    forward = asked(model, batch | {"backward": torch.zeros(4, dtype=torch.long)})
    assert (forward - asked(model, batch))[2:].abs().max() > 1e-2


def test_more_than_two_segments_are_told_apart_by_being_the_same_or_not() -> None:
    model, batch = tiny_model("xlnet"), rows()
    renamed = torch.tensor([5, 0, 9])[batch["segments"]]
    torch.testing.assert_close(asked(model, batch | {"segments": renamed}), asked(model, batch), rtol=0, atol=1e-6)
    one = asked(model, batch | {"segments": torch.zeros_like(renamed)})
    assert (one - asked(model, batch)).abs().max() > 1e-2


def test_it_learns_by_queries() -> None:
    """Words that repeat what stands two places before them."""
    family = change(CATALOGUE["xlnet"], init="glorot")
    size = Size(layers=2, width=32, heads=4, ffn=64)
    model = build_model(ModelSpec(family=family, size=size, vocabulary=20, context=12, dropout=0.0))
    fill(model, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator, losses = torch.Generator().manual_seed(3), []
    for _ in range(80):
        tokens = torch.randint(20, (16, 2), generator=generator).repeat(1, 6)
        places = torch.tensor([2, 7, 9]).expand(16, -1)
        order = torch.zeros(16, 12, dtype=torch.long).scatter(1, places, torch.tensor([1, 2, 3]).expand(16, -1))
        batch = {"tokens": tokens, "order": order, "masked_positions": places, "labels": tokens.gather(1, places)}
        batch["segments"] = torch.zeros_like(tokens)
        loss, count = model(batch).losses["permutation-lm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append(float((loss / count).detach()))
    assert sum(losses[-10:]) / 10 < 1.0


def test_an_order_is_asked_for() -> None:
    batch = tiny_batch("xlnet")
    del batch["order"]
    with pytest.raises(Exception, match="has no order"):
        tiny_model("xlnet")(batch)
