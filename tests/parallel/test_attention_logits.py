"""Largest attention logit, compared with that of all scores, on several layouts."""

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from megaptm.config import Layout, load_config
from megaptm.errors import UserError
from megaptm.layers.attention_logits import max_logit
from megaptm.layers.mask import Mask
from megaptm.layers.pattern import SlidingWindow
from megaptm.parallel.attention_logits import METRIC, AttentionLogitsHook
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny
from tests.ranks import run_ranks
from tests.train.runs import CONFIGS

LENGTH = 12
DOCUMENTS = torch.tensor([[1] * 5 + [2] * 7, [1] * 9 + [0] * 3])
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "documents and padding": {"documents": (DOCUMENTS, DOCUMENTS), "causal": True},
    "order": {"order": torch.arange(LENGTH).flip(0).expand(2, -1)},
    "window": {"pattern": SlidingWindow(before=2, after=1)},
    "queries of a context rank": {"documents": (DOCUMENTS, DOCUMENTS), "queries": torch.tensor([0, 1, 2, 9, 10, 11])},
}


@pytest.mark.parametrize("max_logits", [1, 200, 2**24])
@pytest.mark.parametrize("kind", MASKS)
def test_largest_logit_is_that_of_all_scores(kind, max_logits):
    """The scores are computed for 1, a few and all queries at a time; two heads of queries share keys."""
    generator = torch.Generator().manual_seed(3)
    positions = MASKS[kind].get("queries", torch.arange(LENGTH))
    q, k = (
        torch.randn(length, 2, heads, 8, generator=generator) for length, heads in ((len(positions), 4), (LENGTH, 2))
    )
    mask = Mask((len(positions), LENGTH), q.device, **MASKS[kind])
    scores = torch.einsum("sbhk,mbhk->bhsm", q, k.repeat_interleave(2, 2)) * 0.3
    is_text = torch.ones(2, LENGTH, dtype=torch.bool) if mask.documents is None else DOCUMENTS != 0
    allowed = mask.dense & is_text[:, None, positions, None]
    largest = max_logit(q, k, mask, scale=0.3, max_logits=max_logits)
    assert largest.item() == pytest.approx(scores[allowed.expand_as(scores)].max().item(), rel=1e-6)


def measure(family, layout):
    """Return the metrics of one step, and the largest logit of this rank's calls of torch's kernel in its forward
    passes."""
    engine = filled_engine(
        tiny(family),
        layout,
        ADAM,
        losses=losses_of(family),
        seed=7,
        attention_kernel="fused",
        hooks=[AttentionLogitsHook(2)],
    )
    largest, real = [], F.scaled_dot_product_attention

    def record(q, k, v, attn_mask, dropout_p, is_causal, scale):
        assert attn_mask.dtype == torch.bool
        scores = (q @ k.transpose(-1, -2) * scale).detach().masked_fill(~attn_mask, -torch.inf)
        # A query of padding attends to all keys.
        is_text = ~attn_mask.all(-1, keepdim=True)
        largest.append(scores.masked_fill(~is_text, -torch.inf).max().item())
        return real(q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale)

    def train(step):
        batches = micro_batches(batch(family, step), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        return engine.train_step(batches, step=step, lr=ADAM.lr).metrics

    assert train(0) == {}
    with patch.object(F, "scaled_dot_product_attention", record):
        metrics = train(1)
    assert train(2) == {}
    return metrics, max(largest)


LAYOUTS = {
    "one process": Layout(microbatch=2),
    "recomputation": Layout(microbatch=2, recompute="full"),
    "TP2": Layout(microbatch=2, tensor=2),
    "TP2 sequence-parallel": Layout(microbatch=2, tensor=2, sequence_parallel=True),
    "PP2": Layout(microbatch=2, pipeline=2),
    "DP2 full sharding": Layout(microbatch=2, data=2, full_sharding=True),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_metric_is_the_maximum_over_ranks_layers_and_samples(name):
    layout = LAYOUTS[name]
    ranks = run_ranks(layout.processes, measure, "bert", layout)
    expected = max(largest for _, largest in ranks)
    for metrics, _ in ranks:
        assert metrics[METRIC] == pytest.approx(expected, rel=1e-5)
        assert [*metrics] == [METRIC, *(f"{METRIC}/encoder.{layer}" for layer in range(4))]
        assert max(list(metrics.values())[1:]) == metrics[METRIC]


def losses_when_measured(layout, compiles):
    """Return the results of a step with and without the measurement."""
    results = []
    for hooks in ([AttentionLogitsHook(1)], []):
        options = {"losses": losses_of("gpt2"), "seed": 7, "compiles": compiles, "hooks": hooks}
        with patch("megaptm.parallel.compiled.BACKEND", "eager"):
            engine = filled_engine(tiny("gpt2"), layout, ADAM, **options)
            batches = micro_batches(batch("gpt2", 0), layout, engine.ranks.data)
            results.append(engine.train_step(batches, step=0, lr=ADAM.lr))
    return results


@pytest.mark.parametrize(("context", "compiles"), [(1, False), (2, False), (1, True)])
def test_context_ranks_and_compiled_layers_measure_the_same(context, compiles):
    [(alone, _)] = run_ranks(1, losses_when_measured, Layout(microbatch=2), False)
    for measured, unmeasured in run_ranks(
        context, losses_when_measured, Layout(microbatch=2, context=context), compiles
    ):
        assert measured.loss == unmeasured.loss
        assert measured.metrics == pytest.approx(alone.metrics, rel=1e-5)
        assert unmeasured.metrics == {}


@pytest.mark.parametrize("family", ["deberta", "reformer", "longformer", "xlnet"])
def test_other_attention_is_rejected(family):
    with pytest.raises(UserError, match=r"train.attention_logits_every does not support the layers of the"):
        load_config(CONFIGS / f"{family}/tiny.yaml", ["train.attention_logits_every=2", "model.vocabulary=300"])
