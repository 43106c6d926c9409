"""InfoNCE with several positives, in value and gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from megaptm.families.unimo.loss import cross_modal_contrast
from megaptm.losses.contrast import info_nce

ROWS, CANDIDATES = 5, 9
IMAGES, TEXTS, WIDTH, TEMPERATURE = 3, 4, 6, 0.2


def example() -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, positives (one, two, three, all and none in a sample) and candidates (one missing per sample; in
    the third a positive)."""
    scores = 3 * torch.randn(ROWS, CANDIDATES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    positive = torch.zeros(ROWS, CANDIDATES, dtype=torch.bool)
    positive[0, 4] = positive[1, :2] = positive[2, 3:6] = positive[3] = True
    candidates = torch.ones(ROWS, CANDIDATES, dtype=torch.bool)
    candidates[torch.arange(ROWS), torch.tensor([8, 2, 5, 0, 7])] = False
    return scores, positive, candidates


def formula(scores: list[float], positive: list[bool], candidates: list[bool]) -> tuple[float, list[float]]:
    """Return the loss of a sample and its gradient: each candidate's share of all, minus its share of the positives."""
    weights = [math.exp(score) if is_candidate else 0.0 for score, is_candidate in zip(scores, candidates, strict=True)]
    positive_weights = [weight if is_positive else 0.0 for weight, is_positive in zip(weights, positive, strict=True)]
    if not sum(positive_weights):
        return 0.0, [0.0] * len(scores)
    shares = [
        (weight / sum(weights), own / sum(positive_weights))
        for weight, own in zip(weights, positive_weights, strict=True)
    ]
    return -math.log(sum(positive_weights) / sum(weights)), [share - own for share, own in shares]


def test_info_nce_equals_the_formula():
    """Value and gradient equal the formula written out in Python floats."""
    scores, positive, candidates = example()
    losses = info_nce(scores.requires_grad_(), positive, candidates)
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    known = [formula(*index) for index in zip(scores.tolist(), positive.tolist(), candidates.tolist(), strict=True)]
    assert losses.tolist() == pytest.approx([loss for loss, _ in known], abs=1e-12)
    assert torch.allclose(
        gradient, torch.tensor([index for _, index in known], dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_info_nce_with_one_positive_is_cross_entropy():
    scores, _, _ = example()
    answers = torch.tensor([0, 3, 8, 1, 1])
    positive = torch.nn.functional.one_hot(answers, CANDIDATES).bool()
    torch.testing.assert_close(
        info_nce(scores, positive), torch.nn.functional.cross_entropy(scores, answers, reduction="none")
    )


@pytest.mark.parametrize("positive", [1, 3, 8])
def test_info_nce_of_equal_scores_is_log_of_candidates_per_positive(positive):
    losses = info_nce(torch.full((1, 8), 0.7), torch.arange(8)[None] < positive)
    assert losses.item() == pytest.approx(math.log(8 / positive), abs=1e-6)


def test_hard_negative_raises_and_second_positive_lowers_info_nce():
    positive = torch.tensor([[True, False, False]])
    easy, hard = (info_nce(torch.tensor([[2.0, 0.0, negative]]), positive) for negative in (-3.0, 1.9))
    both = info_nce(torch.tensor([[2.0, 0.0, 1.9]]), torch.tensor([[True, False, True]]))
    assert both < easy < hard


def test_excluded_candidates_do_not_change_info_nce():
    scores, positive, candidates = example()
    other = scores.masked_fill(~candidates, 50)
    assert torch.equal(info_nce(scores, positive, candidates), info_nce(other, positive, candidates))
    assert not torch.equal(info_nce(scores, positive), info_nce(other, positive))


def test_info_nce_is_finite_float32_for_large_bfloat16_scores():
    scores = torch.tensor([[300.0, -300.0], [-300.0, 300.0]], dtype=torch.bfloat16, requires_grad=True)
    losses = info_nce(scores, torch.tensor([[True, False]] * 2))
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert losses.dtype == torch.float32
    assert losses.tolist() == pytest.approx([0, 600])
    assert gradient.tolist() == [[0, 0], [-1, 1]]


def example_batch() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return three images and four texts of each sample, of length 1; the number of positive texts (none in the third
    sample); and masks of valid images and texts."""
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(ROWS, IMAGES, WIDTH, generator=generator, dtype=torch.float64)
    texts = torch.randn(ROWS, TEXTS, WIDTH, generator=generator, dtype=torch.float64)
    valid_texts = torch.ones(ROWS, TEXTS, dtype=torch.bool)
    valid_texts[0, 3] = valid_texts[1, 1] = valid_texts[4, 1:] = False
    valid_images = torch.ones(ROWS, IMAGES, dtype=torch.bool)
    valid_images[1, 2] = valid_images[3, 1:] = False
    images, texts = (torch.nn.functional.normalize(vectors, dim=-1) for vectors in (images, texts))
    return images, texts, torch.tensor([1, 3, 0, 2, 1]), valid_images, valid_texts


def loss_of_sample(
    images: Tensor,
    texts: Tensor,
    positive: list[int],
    valid_images: list[list[bool]],
    valid_texts: list[list[bool]],
    index: int,
) -> Tensor:
    """Return the loss of a sample by a loop: pairs of its image with texts, and of its caption with images."""
    positive_scores, all_scores = [], []
    for other in range(len(images)):
        if not positive[other]:
            continue
        for slot in range(IMAGES):
            if valid_images[other][slot] and (other, slot) != (index, 0):
                score = (images[other, slot] * texts[index, 0]).sum()
                all_scores.append(score)
                positive_scores += [score] if other == index else []
        for slot in range(TEXTS):
            if valid_texts[other][slot]:
                score = (images[index, 0] * texts[other, slot]).sum()
                all_scores.append(score)
                positive_scores += [score] if other == index and slot < positive[index] else []
    positive_sum, all_sum = (
        (torch.stack(scores) / TEMPERATURE).exp().sum() for scores in (positive_scores, all_scores)
    )
    return -(positive_sum / all_sum).log()


def test_cross_modal_contrast_equals_a_loop_over_pairs():
    images, texts, positive, valid_images, valid_texts = example_batch()
    for inputs in (images, texts):
        inputs.requires_grad_()
    losses = cross_modal_contrast(
        images, texts, positive, valid_images, valid_texts, slice(0, ROWS), temperature=TEMPERATURE
    )
    with_positives = [0, 1, 3, 4]
    candidates = (positive.tolist(), valid_images.tolist(), valid_texts.tolist())
    expected = torch.stack([loss_of_sample(images, texts, *candidates, index) for index in with_positives])
    assert torch.allclose(losses[with_positives], expected, rtol=0, atol=1e-12)
    assert losses[2] == 0
    gradients, expected_gradients = (torch.autograd.grad(total.sum(), (images, texts)) for total in (losses, expected))
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-12)
    assert gradients[0][2].count_nonzero() == gradients[1][2].count_nonzero() == 0


def test_cross_modal_contrast_by_rank_equals_the_full_batch():
    batch = example_batch()
    parts = [
        cross_modal_contrast(*batch, own, temperature=TEMPERATURE) for own in (slice(0, 2), slice(2, 3), slice(3, 5))
    ]
    full_batch = cross_modal_contrast(*batch, slice(0, ROWS), temperature=TEMPERATURE)
    assert torch.allclose(torch.cat(parts), full_batch, rtol=0, atol=1e-12)


def test_retrieved_images_are_positive_for_their_own_caption_only():
    """A retrieved image near its own caption lowers that sample's loss. Near another caption it raises the other's
    loss."""
    images, texts, positive, valid_images, valid_texts = example_batch()
    near = images.clone()
    near[0, 1] = texts[0, 0]
    usual, near_own = (
        cross_modal_contrast(
            vectors, texts, positive, valid_images, valid_texts, slice(0, ROWS), temperature=TEMPERATURE
        )
        for vectors in (images, near)
    )
    assert near_own[0] < usual[0]
    near[0, 1] = texts[4, 0]
    near_other = cross_modal_contrast(
        near, texts, positive, valid_images, valid_texts, slice(0, ROWS), temperature=TEMPERATURE
    )
    assert near_other[4] > usual[4]
