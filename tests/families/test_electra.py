"""ELECTRA: its joint step beside the authors' own, what is drawn, what learns from what, and the way there and back."""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.config import load, resolve_model
from megaptm.errors import UserError
from megaptm.families.electra import ELECTRA
from megaptm.families.electra.huggingface import DISCRIMINATOR, GENERATOR
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.import_run import import_run
from megaptm.hub.stacks import alone, renamed
from megaptm.hub.tensor_rules import export_weights, import_weights
from megaptm.layers.mask import self_mask
from megaptm.losses.token import cumulative_shares, pick
from megaptm.models import Model, build_model, fill
from megaptm.models.draw import draw_tokens
from megaptm.objectives import OBJECTIVES, SpecialTokens
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.run.checkpoint import open_checkpoint
from megaptm.spec import ModelSpec, Size, change
from megaptm.tokenizers import train
from tests import ROOT
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec

GOLDEN = Path(__file__).parents[1] / "golden/electra.npz"
"""A training step of google-research/electra (Apache-2.0) on random weights: all that went in and came out."""
WEIGHTS = {"mlm": 1.0, "replaced-token": 50.0}


def golden_spec() -> ModelSpec:
    generator = Size(layers=2, width=16, heads=1, ffn=64)
    size = Size(layers=2, width=32, heads=2, ffn=48, embedding=20, stacks={"generator": generator})
    return ModelSpec(family=ELECTRA, size=size, vocabulary=40, context=16, dropout=0.0)


def in_torch(name: str, value: np.ndarray, stack: str) -> tuple[str, Tensor]:
    """A variable of theirs as `transformers` calls and lays it out, for one of the two encoders."""
    kernel = name.endswith("kernel")
    for theirs, said in (
        (f"{stack}/", "electra/"),
        ("layer_", "layer/"),
        ("gamma", "weight"),
        ("beta", "bias"),
        ("kernel", "weight"),
        ("dense_1", "dense_prediction"),
        ("generator_predictions/output_bias", "generator_lm_head.bias"),
        ("/", "."),
    ):
        name = name.replace(theirs, said)
    if name.split(".")[-1].endswith("_embeddings"):
        name += ".weight"
    return name, torch.tensor(value.T if kernel else value)


def by_stack(golden: np.lib.npyio.NpzFile, kind: str) -> dict[str, dict[str, Tensor]]:
    """Their variables (or gradients), as those of two models."""
    found: dict[str, dict[str, Tensor]] = {}
    others = {"generator": "electra/e", "discriminator": "generator"}
    for stack, theirs in (("generator", "generator"), ("discriminator", "electra")):
        names = [name.removeprefix(f"{kind}/") for name in golden.files if name.startswith(f"{kind}/")]
        shared = [name for name in names if name.startswith("electra/embeddings/")]
        own = [name for name in names if name.startswith((f"{theirs}/", f"{stack}_")) and name not in shared]
        assert not any(name.startswith(others[stack]) for name in own)
        found[stack] = dict(in_torch(name, golden[f"{kind}/{name}"], theirs) for name in (*shared, *own))
    return found


def model_of_theirs(golden: np.lib.npyio.NpzFile) -> Model:
    """Ours, with their weights."""
    spec, theirs = golden_spec(), by_stack(golden, "weight")
    parts = {}
    for counterpart in (DISCRIMINATOR, GENERATOR):
        part = alone(spec, {}, counterpart.stack)[0]
        parts[counterpart.stack], missing = import_weights(counterpart.rules, part, theirs[counterpart.stack])
        assert not missing
    ours = build_model(spec)
    ours.load_state_dict(renamed(ELECTRA, parts), strict=True)
    return ours


def batch_of_theirs(golden: np.lib.npyio.NpzFile) -> dict[str, Tensor]:
    """Theirs, with numbers by which their tokens are drawn: in the middle of each one's share."""
    shares = torch.softmax(torch.tensor(golden["generator_logits"]).double(), -1)
    # What is written where two draws fell on one place is neither of them, so it is taken from the text.
    written = torch.tensor(golden["corrupted_ids"]).long().gather(1, torch.tensor(golden["positions"]).long())
    upper = shares.cumsum(-1).gather(2, written[..., None])[..., 0]
    own = shares.gather(2, written[..., None])[..., 0]
    real = torch.tensor(golden["input_mask"]).long()
    asked = torch.tensor(golden["slot_weights"]) > 0
    return {
        "tokens": torch.tensor(golden["masked_ids"]).long(),
        "document_ids": real,
        "segments": torch.tensor(golden["segment_ids"]).long(),
        "masked_positions": torch.tensor(golden["positions"]).long(),
        "labels": torch.tensor(golden["original_ids"]).long().masked_fill(~asked, IGNORED),
        "uniforms": (upper - own / 2).float(),
        "replaced": torch.where(real > 0, 0, IGNORED),
    }


@pytest.fixture(scope="module")
def golden() -> np.lib.npyio.NpzFile:
    return np.load(GOLDEN)


@pytest.fixture
def model(golden: np.lib.npyio.NpzFile) -> Model:
    return model_of_theirs(golden)


@pytest.fixture
def batch(golden: np.lib.npyio.NpzFile) -> dict[str, Tensor]:
    return batch_of_theirs(golden)


Compared = dict[str, tuple[Tensor, Tensor]]
"""Ours and theirs, by name."""


def joint_step(golden: np.lib.npyio.NpzFile) -> tuple[Compared, Compared]:
    """Losses, and the gradient of every variable."""
    model, wanted = model_of_theirs(golden), by_stack(golden, "grad")
    means = {name: loss / count for name, (loss, count) in model(batch_of_theirs(golden)).losses.items()}
    total = torch.stack([WEIGHTS[name] * mean for name, mean in means.items()]).sum()
    total.backward()
    losses = {"generator_loss": means["mlm"].detach(), "total_loss": total.detach()}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    found: Compared = {}
    for counterpart in (DISCRIMINATOR, GENERATOR):
        spec, ours = alone(model.spec, gradients, counterpart.stack)
        theirs = export_weights(counterpart.rules, spec, ours)
        assert set(theirs) == set(wanted[counterpart.stack])
        for name, gradient in theirs.items():
            found[f"{counterpart.stack}: {name}"] = gradient, wanted[counterpart.stack][name]
    return {name: (loss, torch.tensor(golden[name].item())) for name, loss in losses.items()}, found


def differences() -> tuple[float, float]:
    """The largest of losses and of gradients."""
    losses, gradients = joint_step(np.load(GOLDEN))
    return largest(losses), largest(gradients)


def largest(compared: Compared) -> float:
    return max((ours - theirs).abs().max().item() for ours, theirs in compared.values())


def test_a_joint_step_is_theirs(golden: np.lib.npyio.NpzFile) -> None:
    losses, gradients = joint_step(golden)
    for name, (ours, theirs) in losses.items():
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0, msg=name)
    for name, (ours, theirs) in gradients.items():
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5, msg=name)


def test_what_is_drawn_is_judged(golden: np.lib.npyio.NpzFile, model: Model, batch: dict[str, Tensor]) -> None:
    """The text and the answers are theirs; a token drawn as it was counts as original."""
    streams = {"generator": model.stack("generator")}
    assert streams["generator"] is not None
    x = streams["generator"](model.embed(batch, "generator", lambda x: x), self_mask(batch, "", "full"))
    table = model.embed.token.weight
    tokens, changed = draw_tokens(model.head["mlm"], x, batch, batch["tokens"], table)
    assert tokens.equal(torch.tensor(golden["corrupted_ids"]).long())
    assert changed.long().equal(torch.tensor(golden["labels"]).long())
    assert not changed.all(1).any()


def test_numbers_pick_tokens_as_often_as_the_softmax_says() -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(0)) * 2
    draws = torch.rand(200_000, generator=torch.Generator().manual_seed(1))
    drawn = pick(cumulative_shares(logits, logits.amax(-1, keepdim=True)).expand(len(draws), -1).contiguous(), draws)
    found = torch.bincount(drawn, minlength=30) / len(draws)
    assert (found - torch.softmax(logits, -1)[0]).abs().max() < 0.004


def test_any_number_picks_a_token_that_can_be() -> None:
    least_and_most = torch.tensor([0.0, 1 - 2**-24])
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]).expand(2, -1)
    assert pick(cumulative_shares(logits, logits.amax(-1, keepdim=True)), least_and_most).tolist() == [1, 3]
    # Of a model that has diverged: some token, and its loss says that it has.
    logits = torch.full((2, 5), torch.nan)
    assert pick(cumulative_shares(logits, logits.amax(-1, keepdim=True)), least_and_most).le(4).all()


def test_the_judge_teaches_the_generator_nothing() -> None:
    """No gradient passes through a draw; the tables that both read are the only thing that both move."""
    model, batch = tiny_model("electra"), tiny_batch("electra")
    loss, _ = model(batch).losses["replaced-token"]
    loss.backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert not any(name.startswith(("generator.", "head.mlm", "embed.widen")) for name in moved)
    assert {"embed.token.weight", "embed.norm.weight", "discriminator.0.ffn.up.weight"} <= moved


def test_each_of_the_pair_learns_from_its_own_loss_alone() -> None:
    """Joint loss, MLM + 50 replaced-token: gradients of either encoder are bit for bit those of its own part."""
    model, batch = tiny_model("electra"), tiny_batch("electra")
    parameters = dict(model.named_parameters())

    def gradients(**weights: float) -> dict[str, Tensor | None]:
        losses = model(batch).losses
        total = sum(weight * losses[name][0] / losses[name][1] for name, weight in weights.items())
        found = torch.autograd.grad(total, [*parameters.values()], allow_unused=True)
        return dict(zip(parameters, found, strict=True))

    generator, discriminator = gradients(mlm=1.0), gradients(**{"replaced-token": 50.0})
    joint = gradients(mlm=1.0, **{"replaced-token": 50.0})
    shared = set()
    for name, gradient in joint.items():
        one, two = generator[name], discriminator[name]
        assert gradient is not None
        if one is None or two is None:
            assert gradient.equal(two if one is None else one), name
        else:
            shared.add(name)
            torch.testing.assert_close(gradient, one + two)
    assert shared == {name for name in parameters if name.startswith("embed.") and "widen" not in name}
    assert {name for name, gradient in generator.items() if gradient is None} == {
        name for name in parameters if name.startswith(("discriminator.", "head.replaced-token."))
    }


def test_the_judge_sees_what_was_drawn_and_not_the_mask() -> None:
    model, batch = tiny_model("electra"), tiny_batch("electra")
    said = {
        draw: model({**batch, "uniforms": torch.full_like(batch["uniforms"], draw)}).losses for draw in (0.01, 0.99)
    }
    assert said[0.01]["mlm"][0] == said[0.99]["mlm"][0]
    assert said[0.01]["replaced-token"][0] != said[0.99]["replaced-token"][0]


SPECIAL = SpecialTokens(size=100, pad=96, cls=97, sep=98, mask=99, specials=frozenset({96, 97, 98, 99}))


def test_what_is_asked_is_what_the_released_code_asks() -> None:
    """Counts of 64 tokens, as measured of it: 9.0 draws of a rate of 0.15 and 8.4 places, four in five masked."""
    objective, rng = OBJECTIVES["replaced-token-detection"], np.random.default_rng(0)
    hidden, masked, rows = 0, 0, 3000
    for _ in range(rows):
        piece = [DocumentSlice(rng.integers(0, 96, 62), slots=2)]
        sample = objective.make(piece, SampleContext(SPECIAL, rng, 64, True))
        objective.batch(64, True).check(sample, maker="it")
        asked = sample["masked_positions"][sample["labels"] != IGNORED]
        assert len(set(asked)) == len(asked)
        assert not np.isin(sample["labels"], list(SPECIAL.specials)).any()
        assert (sample["replaced"] == 0).all()
        hidden += len(asked)
        masked += (sample["tokens"][asked] == SPECIAL.mask).sum()
    # Ten draws (0.15 x 64, rounded), cut at int(0.155 x 64) = 9, of 62 tokens.
    assert hidden / rows == pytest.approx(62 * (1 - (61 / 62) ** 9), rel=0.01)
    assert masked / hidden == pytest.approx(0.85, abs=0.01)


def test_both_go_to_hugging_face_and_come_back(tmp_path: Path) -> None:
    model, batch = tiny_model("electra"), tiny_batch("electra", rows=1)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    to_hugging_face(model.spec, weights, None, tmp_path / "out")
    inputs = {"input_ids": batch["tokens"], "token_type_ids": batch["segments"]}
    ours = model.logits({name: field for name, field in batch.items() if name != "uniforms"})
    for folder, head in ((tmp_path / "out", "replaced-token"), (tmp_path / "out/generator", "mlm")):
        kind = transformers.AutoModelForPreTraining if head == "replaced-token" else transformers.AutoModelForMaskedLM
        theirs, info = kind.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        with torch.no_grad():
            assert (ours[head] - theirs.eval()(**inputs).logits).abs().max() <= 1e-5

    found = from_hugging_face(tmp_path / "out")
    assert (found.spec, found.absent) == (model.spec, {})
    assert found.weights.keys() == weights.keys()
    assert all(found.weights[name].equal(weight) for name, weight in weights.items())

    file = tmp_path / "out/generator/model.safetensors"
    theirs = load_file(file)
    place = "electra.embeddings.position_embeddings.weight"
    save_file({name: tensor.half() for name, tensor in theirs.items()}, file)
    from_hugging_face(tmp_path / "out")
    save_file({**theirs, place: theirs[place].flip(0)}, file)
    with pytest.raises(UserError, match=r"embed.position.weight of its generator is another than that of the rest"):
        from_hugging_face(tmp_path / "out")


def test_training_goes_on_from_both_and_from_both_alone(tmp_path: Path) -> None:
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    tokenizer = train("wordpiece", [text], vocabulary=400)
    tokenizer.save(tmp_path / "tokenizer")
    model = build_model(replace(tiny_spec("electra"), vocabulary=tokenizer.vocabulary))
    fill(model, seed=0)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    to_hugging_face(model.spec, weights, tmp_path / "tokenizer", tmp_path / "out")

    imported = import_run(str(tmp_path / "out"), tmp_path / "run")
    assert imported.fresh == ()
    checkpoint = open_checkpoint(tmp_path / "run", step=0)
    assert checkpoint.spec.family == model.spec.family
    assert checkpoint.spec.size_of("generator").width == 16
    assert all(weight.equal(weights[name]) for name, weight in checkpoint.weights().items())

    shutil.rmtree(tmp_path / "out/generator")
    with pytest.raises(UserError, match="put its generator into a subfolder of that name"):
        import_run(str(tmp_path / "out"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_without_its_objective_it_is_bert_of_its_shape() -> None:
    """As the released code has it; `transformers` knows it as `ElectraForMaskedLM`."""
    path = ROOT / "configs/electra/small.yaml"
    [words] = re.findall(r"^#   megaptm train (?:.*\\\n#)?.*$", path.read_text(), re.MULTILINE)
    config = load(path, shlex.split(words.replace("\\\n#", ""))[4:])
    spec = resolve_model(config)
    shape = {"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    with torch.device("meta"):
        theirs = transformers.ElectraForMaskedLM(transformers.ElectraConfig(num_hidden_layers=12, **shape))
    ours = build_model(replace(spec, family=change(spec.family, heads=("mlm",))))
    assert config.built_objective.name == "masked-lm"
    # Rows that pad our vocabulary, and its bias, are nobody's; so is a pooler that nothing asks.
    padding = (spec.padded_vocabulary - spec.vocabulary) * (128 + 1)
    assert sum(p.numel() for p in ours.parameters()) - padding == sum(p.numel() for p in theirs.parameters())
