"""Contrastive learning with rewritten captions: images find their captions among those of others, and prefer them to
their negatives."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.families.unimo.loss import cross_modal_contrast
from megaptm.families.unimo.rewriting import Rewriter, Text

COLORS, SHAPES = ("red", "green", "blue", "yellow"), ("circle", "square", "triangle", "cross")
REWRITER = Rewriter(
    {
        "attributes": [[(color,), (f"{color}ish",)] for color in COLORS],
        "objects": [[(shape,), ("a", "kind", "of", shape)] for shape in SHAPES],
    }
)
VOCABULARY = ["a", "and", "kind", "of", *COLORS, *(f"{color}ish" for color in COLORS), *SHAPES]
PAIRS, TRAINING_PAIRS, FEATURES, WIDTH, STEPS = 160, 128, 12, 16, 60


def make_pairs() -> tuple[Tensor, list[list[Text]]]:
    """Return images [N, F] (the sum of the features of two objects, and noise), and for each its caption, a paraphrase
    and a negative."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(len(COLORS) + len(SHAPES), FEATURES))
    images, texts = [], []
    for _ in range(PAIRS):
        colors, shapes = rng.permutation(len(COLORS))[:2], rng.permutation(len(SHAPES))[:2]
        parts = np.concatenate([features[colors], features[len(COLORS) + shapes]])
        images.append(parts.sum(0) + 0.1 * rng.normal(size=FEATURES))
        names = [("a", COLORS[color], SHAPES[shape]) for color, shape in zip(colors, shapes, strict=True)]
        caption = (*names[0], "and", *names[1])
        texts.append([caption, *REWRITER.paraphrases(caption, rng), *REWRITER.negatives(caption, rng)])
    return torch.tensor(np.array(images), dtype=torch.float32), texts


def test_contrast_learns_captions_and_negatives():
    torch.manual_seed(0)
    images, texts = make_pairs()
    assert all(len(versions) == 3 for versions in texts)
    bags = torch.tensor([[[text.count(word) for word in VOCABULARY] for text in versions] for versions in texts])
    image_encoder, text_encoder = nn.Linear(FEATURES, WIDTH), nn.Linear(len(VOCABULARY), WIDTH)
    optimizer = torch.optim.Adam([*image_encoder.parameters(), *text_encoder.parameters()], lr=0.02)

    def encode(samples: slice) -> tuple[Tensor, Tensor]:
        image_vectors, text_vectors = image_encoder(images[samples]), text_encoder(bags[samples].float())
        return F.normalize(image_vectors, dim=-1), F.normalize(text_vectors, dim=-1)

    for step in range(STEPS):
        first = 32 * step % TRAINING_PAIRS
        image_vectors, text_vectors = encode(slice(first, first + 32))
        num_positives, valid = torch.full((32,), 2), torch.ones(32, 1, dtype=torch.bool)
        optimizer.zero_grad()
        losses = cross_modal_contrast(
            image_vectors[:, None],
            text_vectors,
            num_positives,
            valid,
            valid.expand(-1, 3),
            slice(0, 32),
            temperature=0.1,
        )
        losses.mean().backward()
        optimizer.step()

    with torch.no_grad():
        image_vectors, text_vectors = encode(slice(TRAINING_PAIRS, PAIRS))
        cosines = torch.einsum("re,rke->rk", image_vectors, text_vectors)
        ranking = (image_vectors @ text_vectors[:, 0].t()).argsort(1, descending=True)
    recall_at_3 = (ranking[:, :3] == torch.arange(len(ranking))[:, None]).any(1).float().mean().item()
    assert recall_at_3 > 0.5  # chance: 0.1
    assert (cosines[:, 0] > cosines[:, 2]).float().mean().item() > 0.85  # chance: 0.5
    assert (cosines[:, 1] > cosines[:, 2]).float().mean().item() > 0.8
