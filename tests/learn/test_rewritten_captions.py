"""Images and captions learn to find each other by contrast, with captions that the lists rewrite: held-out ones too,
against others' and against their own broken ones."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.losses.contrast import cross_modal_contrast
from megaptm.objectives.rewriting import Rewriter, Text

COLORS, SHAPES = ("red", "green", "blue", "yellow"), ("circle", "square", "triangle", "cross")
REWRITER = Rewriter(
    {
        "attributes": [[(color,), (f"{color}ish",)] for color in COLORS],
        "objects": [[(shape,), ("a", "kind", "of", shape)] for shape in SHAPES],
    }
)
VOCABULARY = ["a", "and", "kind", "of", *COLORS, *(f"{color}ish" for color in COLORS), *SHAPES]
PAIRS, LEARNED, FEATURES, WIDTH, STEPS = 160, 128, 12, 16, 60


def some_pairs() -> tuple[Tensor, list[list[Text]]]:
    """Images [N, F], sums of what their two things look like, and noise; of each its caption, one that says the same,
    one that does not."""
    rng = np.random.default_rng(0)
    looks = rng.normal(size=(len(COLORS) + len(SHAPES), FEATURES))
    images, texts = [], []
    for _ in range(PAIRS):
        colors, shapes = rng.permutation(len(COLORS))[:2], rng.permutation(len(SHAPES))[:2]
        there = np.concatenate([looks[colors], looks[len(COLORS) + shapes]])
        images.append(there.sum(0) + 0.1 * rng.normal(size=FEATURES))
        names = [("a", COLORS[color], SHAPES[shape]) for color, shape in zip(colors, shapes, strict=True)]
        caption = (*names[0], "and", *names[1])
        texts.append([caption, *REWRITER.paraphrases(caption, rng), *REWRITER.negatives(caption, rng)])
    return torch.tensor(np.array(images), dtype=torch.float32), texts


def test_they_find_each_other_and_tell_right_from_wrong():
    torch.manual_seed(0)
    images, texts = some_pairs()
    assert all(len(three) == 3 for three in texts)
    bags = torch.tensor([[[text.count(word) for word in VOCABULARY] for text in three] for three in texts]).float()
    read_image, read_text = nn.Linear(FEATURES, WIDTH), nn.Linear(len(VOCABULARY), WIDTH)
    adam = torch.optim.Adam([*read_image.parameters(), *read_text.parameters()], lr=0.02)

    def vectors(rows: slice) -> tuple[Tensor, Tensor]:
        return F.normalize(read_image(images[rows]), dim=-1), F.normalize(read_text(bags[rows]), dim=-1)

    for step in range(STEPS):
        first = 32 * step % LEARNED
        looked, said = vectors(slice(first, first + 32))
        right, seen = torch.full((32,), 2), torch.ones(32, 1, dtype=torch.bool)
        adam.zero_grad()
        of_all = cross_modal_contrast(
            looked[:, None], said, right, seen, seen.expand(-1, 3), slice(0, 32), temperature=0.1
        )
        of_all.mean().backward()
        adam.step()

    with torch.no_grad():
        looked, said = vectors(slice(LEARNED, PAIRS))
        cosines = torch.einsum("re,rke->rk", looked, said)
        ranks = (looked @ said[:, 0].t()).argsort(1, descending=True)
    found = (ranks[:, :3] == torch.arange(len(ranks))[:, None]).any(1).float().mean().item()
    assert found > 0.5  # by chance one in ten
    assert (cosines[:, 0] > cosines[:, 2]).float().mean().item() > 0.85  # by chance a half
    assert (cosines[:, 1] > cosines[:, 2]).float().mean().item() > 0.8
