"""NeoBERT equals its formulas, written out in plain torch: no class of transformers computes it (arXiv:2502.19587)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from megaptm.config import Layout
from megaptm.models.model import Model
from tests.engines import filled_engine
from tests.models.tiny import VOCABULARY, tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import scatter_labels
from tests.parity.test_trajectory import OPTIMIZER, ROWS, STEPS, batch_at
from tests.ranks import run_ranks

Weights = dict[str, Tensor]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turn(x_BSHK: Tensor) -> Tensor:
    """Rotate pairs of features by their position. The released code pairs neighbors, here feature i and i + K/2: rows
    of the projections are permuted."""
    first, second = x_BSHK.chunk(2, -1)
    pairs = torch.complex(first, second)
    frequencies = 10_000.0 ** -(torch.arange(pairs.shape[-1]) / pairs.shape[-1])
    angles = torch.arange(x_BSHK.shape[1])[:, None] * frequencies
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([turned.real, turned.imag], -1)


def reference(weights: Weights, batch: Weights, layers: int = 2, heads: int = 4) -> Tensor:
    """Return the logits."""
    tokens, real = batch["tokens"], batch["document_ids"] > 0
    x = weights["embed.token.weight"][tokens]
    for layer in range(layers):
        own = {
            name.removeprefix(f"encoder.{layer}."): weight
            for name, weight in weights.items()
            if name.startswith(f"encoder.{layer}.")
        }
        normed = rms(x, own["attention_norm.weight"])
        q, k, v = (normed @ own["attention.qkv.weight"].t()).unflatten(-1, (heads, 3, -1)).unbind(3)
        q, k, v = (part.transpose(1, 2) for part in (turn(q), turn(k), v))
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        shares = scores.masked_fill(~real[:, None, None], -torch.inf).softmax(-1)
        x = x + (shares @ v).transpose(1, 2).flatten(2) @ own["attention.output.weight"].t()
        normed = rms(x, own["ffn_norm.weight"])
        gate, value = (normed @ own["ffn.up.weight"].t()).unflatten(-1, (-1, 2)).unbind(-1)
        x = x + (F.silu(gate) * value) @ own["ffn.down.weight"].t()
    x = rms(x, weights["encoder.final.weight"])
    return (x @ weights["head.mlm.table.weight"].t() + weights["head.mlm.vocabulary.bias"])[..., :VOCABULARY]


def loss_of(weights: Weights, batch: Weights) -> Tensor:
    return F.cross_entropy(reference(weights, batch).flatten(0, 1), scatter_labels(batch).flatten())


def copied(model: Model) -> Weights:
    return {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}


def differences() -> tuple[float, float]:
    """Return the largest differences of logits and gradients."""
    model, batch = tiny_model("neobert"), tiny_batch("neobert")
    weights, real = copied(model), batch["document_ids"] > 0
    loss, count = model(batch).losses["mlm"]
    (loss / count).backward()
    loss_of(weights, batch).backward()
    logits = (model.logits(batch)["mlm"] - reference(weights, batch))[real].abs().max()
    gradients = [value.grad - weights[name].grad for name, value in model.named_parameters()]
    return logits.item(), max(difference.abs().max().item() for difference in gradients)


def test_logits_and_gradients_equal_the_formulas() -> None:
    assert max(differences()) <= 1e-5


def train_engine() -> list[float]:
    engine = filled_engine(
        tiny_spec("neobert"), Layout(microbatch=ROWS), OPTIMIZER, losses={"mlm": 1.0}, seed=7, precision="fp32"
    )
    results = [engine.train_step([batch_at("neobert", step)], step=step, lr=OPTIMIZER.lr) for step in range(STEPS)]
    return [result.loss for result in results]


def test_losses_equal_adamw_on_the_formulas() -> None:
    weights = copied(tiny_model("neobert", noise=0.0))
    groups = [
        {"params": [weight for weight in weights.values() if weight.dim() > 1], "weight_decay": OPTIMIZER.weight_decay},
        {"params": [weight for weight in weights.values() if weight.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER.lr, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)
    expected = []
    for step in range(STEPS):
        loss = loss_of(weights, batch_at("neobert", step))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(weights.values(), OPTIMIZER.clip)
        optimizer.step()
        expected.append(loss.item())
    [losses] = run_ranks(1, train_engine)
    assert losses == pytest.approx(expected, rel=1e-6)
    assert losses[-1] < losses[0] - 0.2
