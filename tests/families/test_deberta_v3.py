"""DeBERTa-v3: its joint step beside one written out by hand, what learns from what, and the way there and back."""

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
from megaptm.config import load
from megaptm.errors import UserError
from megaptm.families.deberta import DEBERTA_V3
from megaptm.families.electra import ELECTRA
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.import_run import import_run
from megaptm.hub.stacks import alone
from megaptm.models import Model, build_model, fill
from megaptm.objectives import SpecialTokens
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.run.checkpoint import open_checkpoint
from megaptm.spec import Size, change, published
from megaptm.tokenizers import train
from tests import ROOT
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import inputs_of

WEIGHTS = {"mlm": 1.0, "replaced-token": 50.0}
TOKENS, DIFFERENCE = "embed.token.weight", "embed.discriminator_difference.weight"


# S places of one text, D width, H heads, K head width


class ByHand:
    """The same model on one text at a time, from the formulas, with neither masks nor modules."""

    def __init__(self, weights: dict[str, Tensor], *, layers: int, heads: int) -> None:
        self.weights, self.layers, self.heads = weights, layers, heads

    def map(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].t() + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-7)

    def split(self, name: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [rows, H, K]."""
        made = self.map(f"{name}.attention.qkv", x).unflatten(-1, (self.heads, 3, -1))
        return made[:, :, 0], made[:, :, 1], made[:, :, 2]

    def attention(self, stack: str, layer: int, asking: Tensor, seen: Tensor) -> Tensor:
        name = f"{stack}.{layer}"
        table = self.norm(f"{stack}.distance_norm", self.weights[f"{stack}.distance_table.weight"])
        query, (_, key, value) = self.split(name, asking)[0], self.split(name, seen)
        far_query, far_key, _ = self.split(name, table)
        # Distances this short have a row each, in the middle of the table.
        places = torch.arange(len(seen))
        row = len(table) // 2 + places[:, None] - places[None]
        scores = torch.einsum("ihk,jhk->hij", query, key)
        scores = scores + torch.einsum("ihk,ijhk->hij", query, far_key[row])
        scores = scores + torch.einsum("jhk,ijhk->hij", key, far_query[row])
        shares = torch.softmax(scores / (3 * query.shape[-1]) ** 0.5, -1)
        return self.map(f"{name}.attention.output", torch.einsum("hij,jhk->ihk", shares, value).flatten(1))

    def layer(self, stack: str, layer: int, asking: Tensor, seen: Tensor) -> Tensor:
        name = f"{stack}.{layer}"
        x = self.norm(f"{name}.attention_norm", asking + self.attention(stack, layer, asking, seen))
        return self.norm(f"{name}.ffn_norm", x + self.map(f"{name}.ffn.down", F.gelu(self.map(f"{name}.ffn.up", x))))

    def generator(self, tokens: Tensor) -> Tensor:
        """[S, D], by the mask decoder: the last layer twice, of places and the layer before."""
        x = self.norm("embed.norm", self.weights[TOKENS][tokens])
        for layer in range(self.layers - 1):
            x = self.layer("generator", layer, x, x)
        said = x + self.weights["generator.place_table.weight"][: len(tokens)]
        for _ in range(2):
            said = self.layer("generator", self.layers - 1, said, x)
        return said

    def says(self, x: Tensor) -> Tensor:
        """[places, V], of masked tokens."""
        x = self.norm("head.mlm.norm", F.gelu(self.map("head.mlm.transform", x)))
        return (x @ self.weights[TOKENS].t() + self.weights["head.mlm.vocabulary.bias"])[:, :101]

    def judges(self, tokens: Tensor) -> Tensor:
        """[S]: whether each was replaced."""
        table = self.weights[TOKENS].detach() + self.weights[DIFFERENCE]
        x = self.norm("embed.discriminator_norm", table[tokens])
        for layer in range(self.layers):
            x = self.layer("discriminator", layer, x, x)
        return self.map("head.replaced-token.classify", F.gelu(self.map("head.replaced-token.transform", x)))[:, 0]

    def losses(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Mean over what is asked."""
        masked: list[Tensor] = []
        judged: list[Tensor] = []
        for row, documents in enumerate(batch["document_ids"]):
            text = batch["tokens"][row, : int((documents > 0).sum())]
            asked = batch["labels"][row] != IGNORED
            places, labels = batch["masked_positions"][row, asked], batch["labels"][row, asked]
            said = self.says(self.generator(text)[places])
            masked += F.cross_entropy(said, labels, reduction="none").unbind()
            sums = said.detach().double().softmax(-1).cumsum(-1)
            drawn = (sums <= batch["uniforms"][row, asked][:, None] * sums[:, -1:]).sum(-1)
            shown, answers = text.clone(), torch.zeros(len(text))
            shown[places], answers[places] = drawn, (drawn != labels).float()
            judged += F.binary_cross_entropy_with_logits(self.judges(shown), answers, reduction="none").unbind()
        return {"mlm": torch.stack(masked).mean(), "replaced-token": torch.stack(judged).mean()}


Compared = dict[str, tuple[Tensor, Tensor]]
"""Ours and that written out, by name."""


def joint_step(*asked: str) -> tuple[Compared, Compared]:
    """Losses, and the gradient that those asked give every parameter."""
    model, batch = tiny_model("deberta-v3"), tiny_batch("deberta-v3")
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    wanted = ByHand(weights, layers=2, heads=4).losses(batch)
    found = {name: loss / count for name, (loss, count) in model(batch).losses.items()}
    for losses in (found, wanted):
        torch.stack([WEIGHTS[name] * losses[name] for name in asked]).sum().backward()
    gradients = {name: (_gradient(ours), _gradient(weights[name])) for name, ours in model.named_parameters()}
    return {name: (found[name].detach(), wanted[name].detach()) for name in found}, gradients


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def differences() -> tuple[float, float]:
    """The largest of losses, and of gradients."""
    losses, gradients = joint_step(*WEIGHTS)
    return largest(losses), largest(gradients)


def largest(compared: Compared) -> float:
    return max((ours - theirs).abs().max().item() for ours, theirs in compared.values())


@pytest.mark.parametrize("asked", [("mlm", "replaced-token"), ("mlm",), ("replaced-token",)], ids="+".join)
def test_a_joint_step_is_that_written_out(asked: tuple[str, ...]) -> None:
    """Of both together and of each by itself."""
    losses, gradients = joint_step(*asked)
    for name, (ours, theirs) in losses.items():
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0, msg=name)
    for name, (ours, theirs) in gradients.items():
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5, msg=name)


def test_the_judge_moves_its_own_difference_and_nothing_of_the_generator() -> None:
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
    # Of tokens that are not in the text only those that were drawn.
    assert gradient[unread].abs().sum(1).gt(0).sum() <= batch["uniforms"].numel()


def test_it_begins_with_the_table_of_the_generator() -> None:
    model = build_model(tiny_spec("deberta-v3"))
    fill(model, seed=3)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert not weights[DIFFERENCE].any()
    assert weights[TOKENS].any()
    assert alone(model.spec, weights, "discriminator")[1][TOKENS].equal(weights[TOKENS])


def test_a_generator_is_as_wide_and_half_as_deep() -> None:
    for name, size in DEBERTA_V3.sizes.items():
        spec = published(DEBERTA_V3, name)
        assert spec.size_of("generator") == change(size, layers=size.layers // 2, stacks={})


def test_what_is_masked_is_what_the_released_code_masks() -> None:
    """Single tokens, 15 in 100, and all of them shown as the mask."""
    special = SpecialTokens(size=100, pad=96, cls=97, sep=98, mask=99, specials=frozenset({96, 97, 98, 99}))
    objective, rng = load(ROOT / "configs/deberta-v3/base.yaml").built_objective, np.random.default_rng(0)
    assert objective.losses == WEIGHTS
    for _ in range(50):
        sample = objective.make(
            [DocumentSlice(rng.integers(0, 96, 126), slots=2)], SampleContext(special, rng, 128, True)
        )
        asked = sample["masked_positions"][sample["labels"] != IGNORED]
        assert len(asked) == len({*asked}) == round(0.15 * 128)
        assert (sample["tokens"][asked] == special.mask).all()


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (change(ELECTRA, drawn_tables="gradient-disentangled"), "leave out segments and learned positions"),
        (change(DEBERTA_V3, drawn_tables="apart"), "drawn_tables is 'apart', which is unknown; use one of shared"),
    ],
)
def test_other_tables_are_refused(family, said: str) -> None:
    size = Size(layers=1, width=8, heads=2, ffn=8)
    with pytest.raises(UserError, match=said):
        build_model(replace(tiny_spec("bert"), family=family, size=size))


def exported(folder: Path, tokenizer: Path | None = None, vocabulary: int | None = None) -> Model:
    """A model whose folder is there."""
    model = tiny_model("deberta-v3")
    if vocabulary is not None:
        model = build_model(replace(model.spec, vocabulary=vocabulary))
        fill(model, seed=0)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    to_hugging_face(model.spec, weights, tokenizer, folder)
    return model


def test_both_go_to_hugging_face_and_come_back(tmp_path: Path) -> None:
    model, batch = exported(tmp_path / "out"), tiny_batch("deberta-v3", rows=1)
    inputs = inputs_of("deberta-v3", batch)
    judge, info = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(judge).__name__ == "DebertaV2Model"
    assert not info["missing_keys"]
    # The head, for which they have no class.
    assert {name.split(".")[0] for name in info["unexpected_keys"]} == {"discriminator_predictions"}
    with torch.no_grad():
        assert (model.encode(batch) - judge.eval()(**inputs)[0]).abs().max() <= 1e-5
    generator, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "out/generator", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert generator.deberta.embeddings.word_embeddings.weight.equal(model.embed.token.weight[:101])

    found = from_hugging_face(tmp_path / "out")
    assert (found.spec, found.absent) == (model.spec, {})
    weights = dict(model.named_parameters())
    assert found.weights.keys() == weights.keys()
    assert all(value.equal(weights[name]) for name, value in found.weights.items() if name != DIFFERENCE)
    # A sum of two numbers, less one of them, is the other but for its last bits.
    torch.testing.assert_close(found.weights[DIFFERENCE], weights[DIFFERENCE], rtol=0, atol=1e-6)


def test_what_the_generator_says_there_is_by_its_last_layer_once(tmp_path: Path) -> None:
    """And all else of it is the same."""
    model, batch = exported(tmp_path / "out"), tiny_batch("deberta-v3", rows=1)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out/generator").eval()
    block = change(model.spec.family.stacks["generator"], last_layer="once")
    stacks = {**model.spec.family.stacks, "generator": block}
    once = build_model(replace(model.spec, family=change(model.spec.family, stacks=stacks)))
    once.load_state_dict({name: p for name, p in model.named_parameters() if "place_table" not in name})
    bare = {name: field for name, field in batch.items() if name != "uniforms"}
    with torch.no_grad():
        said = theirs(**inputs_of("deberta-v3", batch)).logits
        assert (once.eval().logits(bare)["mlm"] - said).abs().max() <= 1e-5
        assert (model.logits(bare)["mlm"] - said).abs().max() > 1e-2


def test_training_goes_on_from_both_and_from_both_alone(tmp_path: Path) -> None:
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    tokenizer = train("unigram", [text], vocabulary=400, specials="deberta")
    tokenizer.save(tmp_path / "tokenizer")
    model = exported(tmp_path / "out", tmp_path / "tokenizer", tokenizer.vocabulary)
    imported = import_run(str(tmp_path / "out"), tmp_path / "run")
    assert imported.fresh == ()
    checkpoint = open_checkpoint(tmp_path / "run", step=0)
    assert checkpoint.spec.family == model.spec.family
    weights = checkpoint.weights()
    assert all(parameter.equal(weights[name]) for name, parameter in model.named_parameters())

    # As it was released: without a head of ours, and the bare model's names.
    transformers.AutoModel.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "released")
    shutil.copytree(tmp_path / "out/generator", tmp_path / "released/generator")
    assert from_hugging_face(tmp_path / "released").fresh == (
        "head.replaced-token.transform",
        "head.replaced-token.classify",
    )

    shutil.rmtree(tmp_path / "out/generator")
    with pytest.raises(UserError, match=r"a part of deberta-v3: put its generator into a subfolder of that name"):
        import_run(str(tmp_path / "out"), tmp_path / "other")
    assert not (tmp_path / "other").exists()
