"""Models that start from the weights of another kind: a decoder as an encoder and back, and T5Gemma from Gemma 2."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megaptm.config import load_config, resolve_model
from megaptm.errors import UserError
from megaptm.models.model import Model
from megaptm.parallel.initial import checkpoint_initializer
from megaptm.run.initial import find_difference
from megaptm.spec import ModelSpec, change, with_direction
from tests.models.tiny import VOCABULARY, tiny_model, tiny_spec

PAIRS = [("ettin-decoder", "ettin"), ("ettin", "ettin-decoder"), ("llama", "eurobert"), ("eurobert", "llama3")]


class Weights:
    """Reader of the weights of a model, as of its checkpoint."""

    def __init__(self, model: Model) -> None:
        self.tensors = {f"weight/{name}": value.detach().clone() for name, value in model.named_parameters()}

    def names(self) -> list[str]:
        return [*self.tensors]

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


def adapted(spec: ModelSpec, source: Model) -> Model:
    """Return a model of a spec that starts from the weights of another model."""
    assert find_difference(spec, source.spec) is None
    initializer = checkpoint_initializer(Weights(source), spec)  # type: ignore[arg-type]
    model = Model(spec)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initializer(name, torch.full_like(parameter, torch.nan)))
    return model.eval()


def one_token_documents(rows: int = 2, length: int = 9) -> dict[str, Tensor]:
    """Return a batch whose documents have one token each, for which attention to both sides is causal."""
    tokens = torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))
    documents = torch.arange(1, length + 1).expand(rows, -1)
    return {"tokens": tokens, "document_ids": documents, "positions": torch.zeros_like(tokens)}


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=" as ".join)
def test_logits_are_equal_at_the_start(before: str, after: str) -> None:
    """With equal attention masks."""
    source, spec = tiny_model(before), tiny_spec(after)
    model, batch = adapted(spec, source), one_token_documents()
    [(_, expected)], [(_, logits)] = source.logits(batch).items(), model.logits(batch).items()
    assert torch.equal(logits, expected)
    # The visibility is the only other difference, besides windows.
    [(stack, block)], [other] = spec.family.stacks.items(), source.spec.family.stacks.values()
    same = change(block, visibility=other.visibility, attention=other.attention)
    model = adapted(replace(spec, family=change(spec.family, stacks={stack: same})), source)
    text = {"tokens": batch["tokens"]}
    [(_, expected)], [(_, logits)] = source.logits(text).items(), model.logits(text).items()
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "bert", "modernbert"])
def test_attention_of_a_family_is_turned(family: str) -> None:
    """The head has the weights of the published one, so that logits are equal where masks are."""
    source = tiny_model(family)
    causal = not source.spec.family.first_block.causal
    spec = replace(source.spec, family=with_direction(source.spec.family, causal=causal))
    model, batch = adapted(spec, source), one_token_documents()
    batch |= {"segments": torch.zeros_like(batch["tokens"])} if spec.family.segments else {}
    head, published = spec.family.heads[0], source.spec.family.heads[0]
    assert (head, published) == (("lm", "mlm") if causal else ("mlm", "lm"))
    assert torch.equal(model.logits(batch)[head], source.logits(batch)[published])
    text = {name: field for name, field in batch.items() if name not in ("document_ids", "positions")}
    other = text | {"tokens": text["tokens"].clone()}
    other["tokens"][:, -1] = (other["tokens"][:, -1] + 1) % VOCABULARY
    before, after = (
        each.logits(other)[name] - each.logits(text)[name] for each, name in ((source, published), (model, head))
    )
    reaches_last = [bool(difference[:, -2].any()) for difference in (before, after)]
    assert reaches_last == ([True, False] if causal else [False, True])


def test_turned_families_are_configured() -> None:
    config = load_config("qwen3/tiny", ["model.causal=false"])
    spec = resolve_model(config)
    assert (config.objective, spec.family.heads, spec.family.first_block.visibility) == ("masked-lm", ("mlm",), "full")
    tied = resolve_model(load_config("eurobert/tiny", ["model.tied=true"]))
    assert "head.mlm.table.weight" not in dict(Model(tied).named_parameters())
    with pytest.raises(UserError, match=r"model\.causal \(true\) needs a family with one stack.*unlike t5; remove it"):
        load_config("t5/tiny", ["model.causal=true"])


@pytest.mark.parametrize("kv_heads", [2, None], ids=["grouped", "joint"])
def test_encoder_decoder_starts_from_a_decoder(kv_heads: int | None) -> None:
    """Each stack has the layers of the decoder; cross-attention has its projections (arXiv:2504.06225, section 2)."""
    spec, table = tiny_spec("t5gemma"), tiny_spec("gemma2")
    spec, table = (replace(each, size=change(each.size, kv_heads=kv_heads)) for each in (spec, table))
    block = change(table.family.last_block, attention={"scale_width": None})
    table = replace(table, family=change(table.family, stacks={"decoder": block}))
    source = Model(table)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    model = adapted(spec, source)
    own = {name: value.detach() for name, value in model.named_parameters()}
    assert torch.equal(own["embed.encoder_token.weight"], own["embed.token.weight"])
    assert torch.equal(own["decoder.1.cross_output_norm.weight"], own["encoder.1.attention_output_norm.weight"])
    assert torch.equal(own["decoder.1.cross.output.weight"], own["encoder.1.attention.output.weight"])
    # Self-attention of the source and cross-attention give the same output for the same queries, keys and values.
    x = torch.randn(5, 2, spec.width, generator=generator)
    attention, cross = model.stack("encoder")["1"].attention, model.stack("decoder")["1"].cross
    assert torch.allclose(attention(x, None), cross(x, x, None), atol=1e-6)
    batch = one_token_documents()
    states = source.states(batch).streams["decoder"]
    decoder = {f"decoder_{name}": value for name, value in batch.items()}
    assert torch.equal(model.states(batch | decoder).streams["encoder"], states)


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("llama", "qwen3", "key_width of the decoder"),
        ("llama", "olmo2", "attention of layer 0 of the decoder"),
        ("llama", "gemma2", "embedding.scale"),
        ("gpt2", "ettin-decoder", "norm of the sum of embeddings of the decoder"),
    ],
)
def test_other_layers_are_refused(before: str, after: str, name: str) -> None:
    difference = find_difference(tiny_spec(after), tiny_spec(before))
    assert difference is not None
    assert difference[0] == name
