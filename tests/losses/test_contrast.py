"""InfoNCE with several right candidates and hard wrong ones is its formula, written out, in value and gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from megaptm.losses.contrast import cross_modal_contrast, info_nce

ROWS, CANDIDATES = 5, 9
IMAGES, TEXTS, WIDTH, TEMPERATURE = 3, 4, 6, 0.2


def a_case() -> tuple[Tensor, Tensor, Tensor]:
    """Scores; rows with one, two, three, all and no right candidate; and what is there, one candidate of each missing,
    a right one in the third."""
    scores = 3 * torch.randn(ROWS, CANDIDATES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    right = torch.zeros(ROWS, CANDIDATES, dtype=torch.bool)
    right[0, 4] = right[1, :2] = right[2, 3:6] = right[3] = True
    there = torch.ones(ROWS, CANDIDATES, dtype=torch.bool)
    there[torch.arange(ROWS), torch.tensor([8, 2, 5, 0, 7])] = False
    return scores, right, there


def written_out(scores: list[float], right: list[bool], there: list[bool]) -> tuple[float, list[float]]:
    """The loss of a row and its gradient: of each candidate its share of all, less its share of the right ones."""
    weights = [math.exp(score) if here else 0.0 for score, here in zip(scores, there, strict=True)]
    of_right = [weight if good else 0.0 for weight, good in zip(weights, right, strict=True)]
    if not sum(of_right):
        return 0.0, [0.0] * len(scores)
    shares = [(weight / sum(weights), own / sum(of_right)) for weight, own in zip(weights, of_right, strict=True)]
    return -math.log(sum(of_right) / sum(weights)), [share - own for share, own in shares]


def test_it_is_the_formula_in_value_and_gradient():
    scores, right, there = a_case()
    losses = info_nce(scores.requires_grad_(), right, there)
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    known = [written_out(*row) for row in zip(scores.tolist(), right.tolist(), there.tolist(), strict=True)]
    assert losses.tolist() == pytest.approx([loss for loss, _ in known], abs=1e-12)
    assert torch.allclose(gradient, torch.tensor([row for _, row in known], dtype=torch.float64), rtol=0, atol=1e-12)


def test_with_one_right_candidate_it_is_cross_entropy():
    scores, _, _ = a_case()
    answers = torch.tensor([0, 3, 8, 1, 1])
    right = torch.nn.functional.one_hot(answers, CANDIDATES).bool()
    torch.testing.assert_close(
        info_nce(scores, right), torch.nn.functional.cross_entropy(scores, answers, reduction="none")
    )


@pytest.mark.parametrize("right", [1, 3, 8])
def test_who_cannot_tell_candidates_apart_guesses(right):
    losses = info_nce(torch.full((1, 8), 0.7), torch.arange(8)[None] < right)
    assert losses.item() == pytest.approx(math.log(8 / right), abs=1e-6)


def test_a_hard_wrong_candidate_costs_more_than_an_easy_one_and_another_right_one_costs_less():
    right = torch.tensor([[True, False, False]])
    easy, hard = (info_nce(torch.tensor([[2.0, 0.0, wrong]]), right) for wrong in (-3.0, 1.9))
    both = info_nce(torch.tensor([[2.0, 0.0, 1.9]]), torch.tensor([[True, False, True]]))
    assert both < easy < hard


def test_what_is_not_there_changes_nothing():
    scores, right, there = a_case()
    other = scores.masked_fill(~there, 50)
    assert torch.equal(info_nce(scores, right, there), info_nce(other, right, there))
    assert not torch.equal(info_nce(scores, right), info_nce(other, right))


def test_large_scores_in_bfloat16_give_finite_numbers_of_float32():
    scores = torch.tensor([[300.0, -300.0], [-300.0, 300.0]], dtype=torch.bfloat16, requires_grad=True)
    losses = info_nce(scores, torch.tensor([[True, False]] * 2))
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert losses.dtype == torch.float32
    assert losses.tolist() == pytest.approx([0, 600])
    assert gradient.tolist() == [[0, 0], [-1, 1]]


def a_batch() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Three images and four texts of each row, of length 1; how many texts are right, in the third row none; and which
    images and texts are there."""
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(ROWS, IMAGES, WIDTH, generator=generator, dtype=torch.float64)
    texts = torch.randn(ROWS, TEXTS, WIDTH, generator=generator, dtype=torch.float64)
    said = torch.ones(ROWS, TEXTS, dtype=torch.bool)
    said[0, 3] = said[1, 1] = said[4, 1:] = False
    seen = torch.ones(ROWS, IMAGES, dtype=torch.bool)
    seen[1, 2] = seen[3, 1:] = False
    images, texts = (torch.nn.functional.normalize(vectors, dim=-1) for vectors in (images, texts))
    return images, texts, torch.tensor([1, 3, 0, 2, 1]), seen, said


def compared(
    images: Tensor, texts: Tensor, right: list[int], seen: list[list[bool]], said: list[list[bool]], row: int
) -> Tensor:
    """The loss of a row, pair by pair: those of its image with texts, those of its caption with images."""
    found, among = [], []
    for other in range(len(images)):
        if not right[other]:
            continue
        for slot in range(IMAGES):
            if seen[other][slot] and (other, slot) != (row, 0):
                score = (images[other, slot] * texts[row, 0]).sum()
                among.append(score)
                found += [score] if other == row else []
        for slot in range(TEXTS):
            if said[other][slot]:
                score = (images[row, 0] * texts[other, slot]).sum()
                among.append(score)
                found += [score] if other == row and slot < right[row] else []
    found_sum, all_sum = ((torch.stack(scores) / TEMPERATURE).exp().sum() for scores in (found, among))
    return -(found_sum / all_sum).log()


def test_rows_of_a_batch_are_compared_pair_by_pair():
    images, texts, right, seen, said = a_batch()
    for given in (images, texts):
        given.requires_grad_()
    losses = cross_modal_contrast(images, texts, right, seen, said, slice(0, ROWS), temperature=TEMPERATURE)
    asked = [0, 1, 3, 4]
    there = (right.tolist(), seen.tolist(), said.tolist())
    known = torch.stack([compared(images, texts, *there, row) for row in asked])
    assert torch.allclose(losses[asked], known, rtol=0, atol=1e-12)
    assert losses[2] == 0
    ours, theirs = (torch.autograd.grad(total.sum(), (images, texts)) for total in (losses, known))
    assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in zip(ours, theirs, strict=True))
    assert ours[0][2].count_nonzero() == ours[1][2].count_nonzero() == 0


def test_each_rank_compares_its_own_rows_with_all():
    batch = a_batch()
    parts = [
        cross_modal_contrast(*batch, own, temperature=TEMPERATURE) for own in (slice(0, 2), slice(2, 3), slice(3, 5))
    ]
    whole = cross_modal_contrast(*batch, slice(0, ROWS), temperature=TEMPERATURE)
    assert torch.allclose(torch.cat(parts), whole, rtol=0, atol=1e-12)


def test_images_that_were_retrieved_are_right_for_their_own_caption_alone():
    """An image like a pair's that is near the caption costs less; near another's, that one more."""
    images, texts, right, seen, said = a_batch()
    near = images.clone()
    near[0, 1] = texts[0, 0]
    usual, mine = (
        cross_modal_contrast(one, texts, right, seen, said, slice(0, ROWS), temperature=TEMPERATURE)
        for one in (images, near)
    )
    assert mine[0] < usual[0]
    near[0, 1] = texts[4, 0]
    others = cross_modal_contrast(near, texts, right, seen, said, slice(0, ROWS), temperature=TEMPERATURE)
    assert others[4] > usual[4]
