"""DeBERTa-v3: equality of its joint step with the formulas, gradients of each loss, export and import."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.families.deberta import DEBERTA_V3
from megaptm.families.deberta.spec import DifferenceInput
from megaptm.families.electra import ELECTRA
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.import_run import import_run
from megaptm.hub.stacks import split_stack
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.objectives import SpecialTokens
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.run.checkpoint import open_checkpoint
from megaptm.spec import Size, change, published_spec
from megaptm.tokenizers import train_tokenizer_on_texts
from tests import ROOT
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import convert_inputs

WEIGHTS = {"mlm": 1.0, "replaced-token": 50.0}
TOKENS, DIFFERENCE = "embed.token.weight", "embed.discriminator_difference.weight"


# S positions of one document, D width, H heads, K head width


class ReferenceModel:
    """The model for one document at a time, written from the formulas without masks or modules."""

    def __init__(self, weights: dict[str, Tensor], *, layers: int, heads: int) -> None:
        self.weights, self.layers, self.heads = weights, layers, heads

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].t() + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-7)

    def split_heads(self, name: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each [rows, H, K]."""
        qkv = self.linear(f"{name}.attention.qkv", x).unflatten(-1, (self.heads, 3, -1))
        return qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]

    def attention(self, stack: str, layer: int, query_input: Tensor, key_input: Tensor) -> Tensor:
        name = f"{stack}.{layer}"
        table = self.norm(f"{stack}.distance_norm", self.weights[f"{stack}.distance_table.weight"])
        query, (_, key, value) = self.split_heads(name, query_input)[0], self.split_heads(name, key_input)
        far_query, far_key, _ = self.split_heads(name, table)
        # Each of these short distances has its own row, in the middle of the table.
        positions = torch.arange(len(key_input))
        row = len(table) // 2 + positions[:, None] - positions[None]
        scores = torch.einsum("ihk,jhk->hij", query, key)
        scores = scores + torch.einsum("ihk,ijhk->hij", query, far_key[row])
        scores = scores + torch.einsum("jhk,ijhk->hij", key, far_query[row])
        weights = torch.softmax(scores / (3 * query.shape[-1]) ** 0.5, -1)
        return self.linear(f"{name}.attention.output", torch.einsum("hij,jhk->ihk", weights, value).flatten(1))

    def layer(self, stack: str, layer: int, query_input: Tensor, key_input: Tensor) -> Tensor:
        name = f"{stack}.{layer}"
        x = self.norm(f"{name}.attention_norm", query_input + self.attention(stack, layer, query_input, key_input))
        return self.norm(
            f"{name}.ffn_norm", x + self.linear(f"{name}.ffn.down", F.gelu(self.linear(f"{name}.ffn.up", x)))
        )

    def generator(self, tokens: Tensor) -> Tensor:
        """Return the hidden states [S, D] of the mask decoder: the last layer twice, with positions as first
        queries."""
        x = self.norm("embed.norm", self.weights[TOKENS][tokens])
        for layer in range(self.layers - 1):
            x = self.layer("generator", layer, x, x)
        query_input = x + self.weights["generator.place_table.weight"][: len(tokens)]
        for _ in range(2):
            query_input = self.layer("generator", self.layers - 1, query_input, x)
        return query_input

    def predict_tokens(self, x: Tensor) -> Tensor:
        """Return the logits [positions, V] of masked tokens."""
        x = self.norm("head.mlm.norm", F.gelu(self.linear("head.mlm.transform", x)))
        return (x @ self.weights[TOKENS].t() + self.weights["head.mlm.vocabulary.bias"])[:, :101]

    def predict_replaced(self, tokens: Tensor) -> Tensor:
        """Return the logits [S] of whether each token was replaced."""
        table = self.weights[TOKENS].detach() + self.weights[DIFFERENCE]
        x = self.norm("embed.discriminator_norm", table[tokens])
        for layer in range(self.layers):
            x = self.layer("discriminator", layer, x, x)
        return self.linear("head.replaced-token.classify", F.gelu(self.linear("head.replaced-token.transform", x)))[
            :, 0
        ]

    def losses(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the mean over labels of each loss."""
        masked_losses: list[Tensor] = []
        replaced_losses: list[Tensor] = []
        for row, documents in enumerate(batch["document_ids"]):
            text = batch["tokens"][row, : int((documents > 0).sum())]
            is_label = batch["labels"][row] != IGNORED
            positions, labels = batch["masked_positions"][row, is_label], batch["labels"][row, is_label]
            logits = self.predict_tokens(self.generator(text)[positions])
            masked_losses += F.cross_entropy(logits, labels, reduction="none").unbind()
            sums = logits.detach().double().softmax(-1).cumsum(-1)
            sampled = (sums <= batch["uniforms"][row, is_label][:, None] * sums[:, -1:]).sum(-1)
            corrupted, is_replaced = text.clone(), torch.zeros(len(text))
            corrupted[positions], is_replaced[positions] = sampled, (sampled != labels).float()
            replaced_losses += F.binary_cross_entropy_with_logits(
                self.predict_replaced(corrupted), is_replaced, reduction="none"
            ).unbind()
        return {"mlm": torch.stack(masked_losses).mean(), "replaced-token": torch.stack(replaced_losses).mean()}


Compared = dict[str, tuple[Tensor, Tensor]]
"""Actual and expected values by name."""


def joint_step(*loss_names: str) -> tuple[Compared, Compared]:
    """Return all losses, and the gradients of the sum of the named losses."""
    model, batch = tiny_model("deberta-v3"), tiny_batch("deberta-v3")
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    expected = ReferenceModel(weights, layers=2, heads=4).losses(batch)
    actual = {name: loss / count for name, (loss, count) in model(batch).losses.items()}
    for losses in (actual, expected):
        torch.stack([WEIGHTS[name] * losses[name] for name in loss_names]).sum().backward()
    gradients = {name: (_gradient(parameter), _gradient(weights[name])) for name, parameter in model.named_parameters()}
    return {name: (actual[name].detach(), expected[name].detach()) for name in actual}, gradients


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def differences() -> tuple[float, float]:
    """Return the largest difference of losses, and that of gradients."""
    losses, gradients = joint_step(*WEIGHTS)
    return largest(losses), largest(gradients)


def largest(compared: Compared) -> float:
    return max((actual - expected).abs().max().item() for actual, expected in compared.values())


@pytest.mark.parametrize("loss_names", [("mlm", "replaced-token"), ("mlm",), ("replaced-token",)], ids="+".join)
def test_joint_step_equals_the_formulas(loss_names: tuple[str, ...]) -> None:
    """Losses and gradients, of both losses together and of each alone."""
    losses, gradients = joint_step(*loss_names)
    for name, (actual, expected) in losses.items():
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=0, msg=name)
    for name, (actual, expected) in gradients.items():
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-5, msg=name)


def test_discriminator_loss_does_not_train_the_generator() -> None:
    model, batch = tiny_model("deberta-v3"), tiny_batch("deberta-v3")
    model(batch).losses["replaced-token"][0].backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert {name.partition(".")[0] for name in moved} == {"embed", "discriminator", "head"}
    own = {DIFFERENCE, "embed.discriminator_norm.weight", "embed.discriminator_norm.bias"}
    assert {name for name in moved if name.startswith("embed.")} == own
    assert not any(name.startswith("head.mlm") for name in moved)
    unread = torch.ones(len(model.embed.token.weight), dtype=torch.bool)
    unread[batch["tokens"]] = False
    gradient = model.get_parameter(DIFFERENCE).grad
    assert gradient.abs().sum(1).gt(0).sum() > 10
    # Tokens outside the text get a gradient only if they were sampled.
    assert gradient[unread].abs().sum(1).gt(0).sum() <= batch["uniforms"].numel()


def test_initial_discriminator_table_is_the_generators() -> None:
    model = Model(tiny_spec("deberta-v3"))
    init_weights(model, seed=3)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert not weights[DIFFERENCE].any()
    assert weights[TOKENS].any()
    assert split_stack(model.spec, weights, "discriminator")[1][TOKENS].equal(weights[TOKENS])


def test_generator_has_half_the_layers() -> None:
    for name, size in DEBERTA_V3.sizes.items():
        spec = published_spec(DEBERTA_V3, name)
        assert spec.size_of("generator") == change(size, layers=size.layers // 2, stacks={})


def test_masking_matches_the_released_code() -> None:
    """15% single tokens are masked, and all are replaced by the mask token."""
    special = SpecialTokens(size=100, pad=96, cls=97, sep=98, mask=99, specials=frozenset({96, 97, 98, 99}))
    objective, rng = load_config(ROOT / "configs/deberta-v3/base.yaml").built_objective, np.random.default_rng(0)
    assert objective.losses == WEIGHTS
    for _ in range(50):
        sample = objective.make_sample(
            [DocumentSlice(rng.integers(0, 96, 126), slots=2)], SampleContext(special, rng, 128, True)
        )
        positions = sample["masked_positions"][sample["labels"] != IGNORED]
        assert len(positions) == len({*positions}) == round(0.15 * 128)
        assert (sample["tokens"][positions] == special.mask).all()


def test_difference_table_of_other_tables_is_refused() -> None:
    family = change(ELECTRA, inputs=(*ELECTRA.inputs, DifferenceInput()))
    size = Size(layers=1, width=8, heads=2, ffn=8)
    with pytest.raises(UserError, match="remove segments and learned positions"):
        Model(replace(tiny_spec("bert"), family=family, size=size))


def export_tiny_model(folder: Path, tokenizer: Path | None = None, vocabulary: int | None = None) -> Model:
    """Export a tiny model to a folder, and return it."""
    model = tiny_model("deberta-v3")
    if vocabulary is not None:
        model = Model(replace(model.spec, vocabulary=vocabulary))
        init_weights(model, seed=0)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    to_hugging_face(model.spec, weights, tokenizer, folder)
    return model


def test_export_and_import_round_trip(tmp_path: Path) -> None:
    model, batch = export_tiny_model(tmp_path / "out"), tiny_batch("deberta-v3", rows=1)
    inputs = convert_inputs("deberta-v3", batch)
    discriminator, info = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(discriminator).__name__ == "DebertaV2Model"
    assert not info["missing_keys"]
    # transformers has no class with this head.
    assert {name.split(".")[0] for name in info["unexpected_keys"]} == {"discriminator_predictions"}
    with torch.no_grad():
        assert (model.encode(batch) - discriminator.eval()(**inputs)[0]).abs().max() <= 1e-5
    generator, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "out/generator", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert generator.deberta.embeddings.word_embeddings.weight.equal(model.embed.token.weight[:101])

    imported = from_hugging_face(tmp_path / "out")
    assert (imported.spec, imported.absent) == (model.spec, {})
    weights = dict(model.named_parameters())
    assert imported.weights.keys() == weights.keys()
    assert all(value.equal(weights[name]) for name, value in imported.weights.items() if name != DIFFERENCE)
    # Adding and subtracting the same value changes the last bits.
    torch.testing.assert_close(imported.weights[DIFFERENCE], weights[DIFFERENCE], rtol=0, atol=1e-6)


def test_exported_generator_lacks_the_mask_decoder(tmp_path: Path) -> None:
    """Hidden states are equal to those of a model whose last layer runs once."""
    model, batch = export_tiny_model(tmp_path / "out"), tiny_batch("deberta-v3", rows=1)
    reference = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out/generator").eval()
    block = model.spec.family.stacks["generator"].for_encoding
    stacks = {**model.spec.family.stacks, "generator": block}
    once = Model(replace(model.spec, family=change(model.spec.family, stacks=stacks)))
    once.load_state_dict({name: p for name, p in model.named_parameters() if "place_table" not in name})
    bare = {name: field for name, field in batch.items() if name != "uniforms"}
    with torch.no_grad():
        logits = reference(**convert_inputs("deberta-v3", batch)).logits
        assert (once.eval().logits(bare)["mlm"] - logits).abs().max() <= 1e-5
        assert (model.logits(bare)["mlm"] - logits).abs().max() > 1e-2


def test_import_needs_both_encoders(tmp_path: Path) -> None:
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    tokenizer = train_tokenizer_on_texts("unigram", [text], vocabulary=400, specials="deberta")
    tokenizer.save(tmp_path / "tokenizer")
    model = export_tiny_model(tmp_path / "out", tmp_path / "tokenizer", tokenizer.vocabulary)
    imported = import_run(str(tmp_path / "out"), tmp_path / "run")
    assert imported.newly_initialized == ()
    checkpoint = open_checkpoint(tmp_path / "run", step=0)
    assert checkpoint.spec.family == model.spec.family
    weights = checkpoint.weights()
    assert all(parameter.equal(weights[name]) for name, parameter in model.named_parameters())

    # As in the released files: the bare model's names, and no discriminator head.
    transformers.AutoModel.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "released")
    shutil.copytree(tmp_path / "out/generator", tmp_path / "released/generator")
    assert from_hugging_face(tmp_path / "released").newly_initialized == (
        "head.replaced-token.transform",
        "head.replaced-token.classify",
    )

    shutil.rmtree(tmp_path / "out/generator")
    with pytest.raises(UserError, match=r"a part of deberta-v3: put its generator into a subfolder of that name"):
        import_run(str(tmp_path / "out"), tmp_path / "other")
    assert not (tmp_path / "other").exists()
