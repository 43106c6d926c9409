"""ELECTRA: equality of its joint step with the released code, sampling, gradients of each loss, export and import."""

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
from megaptm.config import load_config, resolve_model
from megaptm.errors import UserError
from megaptm.families.electra import ELECTRA
from megaptm.families.electra.huggingface import DISCRIMINATOR, GENERATOR
from megaptm.families.electra.sampling import ReplacedTokenSampler
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.import_run import import_run
from megaptm.hub.stacks import rename_to_full, split_stack
from megaptm.hub.tensor_rules import export_weights, import_weights
from megaptm.layers.mask import self_mask
from megaptm.layers.stack import StackInputs
from megaptm.losses.token import cumulative_shares, pick_token
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.objectives import OBJECTIVES, SpecialTokens
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.run.checkpoint import open_checkpoint
from megaptm.spec import ModelSpec, Size, change
from megaptm.tokenizers import train_tokenizer_on_texts
from tests import ROOT
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec

GOLDEN = Path(__file__).parents[1] / "golden/electra.npz"
"""Inputs, weights, outputs and gradients of a training step of google-research/electra (Apache-2.0)."""
WEIGHTS = {"mlm": 1.0, "replaced-token": 50.0}


def golden_spec() -> ModelSpec:
    generator = Size(layers=2, width=16, heads=1, ffn=64)
    size = Size(layers=2, width=32, heads=2, ffn=48, embedding=20, stacks={"generator": generator})
    return ModelSpec(family=ELECTRA, size=size, vocabulary=40, context=16, dropout=0.0)


def to_torch(name: str, value: np.ndarray, stack: str) -> tuple[str, Tensor]:
    """Return the name and layout that `transformers` has for a TensorFlow variable of one encoder."""
    kernel = name.endswith("kernel")
    for tf_name, hf_name in (
        (f"{stack}/", "electra/"),
        ("layer_", "layer/"),
        ("gamma", "weight"),
        ("beta", "bias"),
        ("kernel", "weight"),
        ("dense_1", "dense_prediction"),
        ("generator_predictions/output_bias", "generator_lm_head.bias"),
        ("/", "."),
    ):
        name = name.replace(tf_name, hf_name)
    if name.split(".")[-1].endswith("_embeddings"):
        name += ".weight"
    return name, torch.tensor(value.T if kernel else value)


def split_by_stack(golden: np.lib.npyio.NpzFile, kind: str) -> dict[str, dict[str, Tensor]]:
    """Return the released code's variables (or gradients) as those of two models."""
    variables: dict[str, dict[str, Tensor]] = {}
    other_prefixes = {"generator": "electra/e", "discriminator": "generator"}
    for stack, prefix in (("generator", "generator"), ("discriminator", "electra")):
        names = [name.removeprefix(f"{kind}/") for name in golden.files if name.startswith(f"{kind}/")]
        shared = [name for name in names if name.startswith("electra/embeddings/")]
        own = [name for name in names if name.startswith((f"{prefix}/", f"{stack}_")) and name not in shared]
        assert not any(name.startswith(other_prefixes[stack]) for name in own)
        variables[stack] = dict(to_torch(name, golden[f"{kind}/{name}"], prefix) for name in (*shared, *own))
    return variables


def golden_model(golden: np.lib.npyio.NpzFile) -> Model:
    """Return megaptm's model with the released code's weights."""
    spec, tf_weights = golden_spec(), split_by_stack(golden, "weight")
    parts = {}
    for counterpart in (DISCRIMINATOR, GENERATOR):
        part = split_stack(spec, {}, counterpart.stack)[0]
        parts[counterpart.stack], missing = import_weights(counterpart.rules, part, tf_weights[counterpart.stack])
        assert not missing
    model = Model(spec)
    model.load_state_dict(rename_to_full(ELECTRA, parts), strict=True)
    return model


def golden_batch(golden: np.lib.npyio.NpzFile) -> dict[str, Tensor]:
    """Return the released code's batch. Its uniforms are in the middle of each sampled token's share, so that the same
    tokens are sampled."""
    shares = torch.softmax(torch.tensor(golden["generator_logits"]).double(), -1)
    # If two samples fell on one position, the text has neither of the two, so the token is taken from the text.
    written = torch.tensor(golden["corrupted_ids"]).long().gather(1, torch.tensor(golden["positions"]).long())
    upper = shares.cumsum(-1).gather(2, written[..., None])[..., 0]
    own = shares.gather(2, written[..., None])[..., 0]
    real = torch.tensor(golden["input_mask"]).long()
    is_label = torch.tensor(golden["slot_weights"]) > 0
    return {
        "tokens": torch.tensor(golden["masked_ids"]).long(),
        "document_ids": real,
        "segments": torch.tensor(golden["segment_ids"]).long(),
        "masked_positions": torch.tensor(golden["positions"]).long(),
        "labels": torch.tensor(golden["original_ids"]).long().masked_fill(~is_label, IGNORED),
        "uniforms": (upper - own / 2).float(),
        "replaced": torch.where(real > 0, 0, IGNORED),
    }


@pytest.fixture(scope="module")
def golden() -> np.lib.npyio.NpzFile:
    return np.load(GOLDEN)


@pytest.fixture
def model(golden: np.lib.npyio.NpzFile) -> Model:
    return golden_model(golden)


@pytest.fixture
def batch(golden: np.lib.npyio.NpzFile) -> dict[str, Tensor]:
    return golden_batch(golden)


Compared = dict[str, tuple[Tensor, Tensor]]
"""Actual and expected values by name."""


def joint_step(golden: np.lib.npyio.NpzFile) -> tuple[Compared, Compared]:
    """Return the losses, and the gradient of every variable."""
    model, expected = golden_model(golden), split_by_stack(golden, "grad")
    means = {name: loss / count for name, (loss, count) in model(golden_batch(golden)).losses.items()}
    total = torch.stack([WEIGHTS[name] * mean for name, mean in means.items()]).sum()
    total.backward()
    losses = {"generator_loss": means["mlm"].detach(), "total_loss": total.detach()}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    compared: Compared = {}
    for counterpart in (DISCRIMINATOR, GENERATOR):
        spec, own_gradients = split_stack(model.spec, gradients, counterpart.stack)
        hf_gradients = export_weights(counterpart.rules, spec, own_gradients)
        assert set(hf_gradients) == set(expected[counterpart.stack])
        for name, gradient in hf_gradients.items():
            compared[f"{counterpart.stack}: {name}"] = gradient, expected[counterpart.stack][name]
    return {name: (loss, torch.tensor(golden[name].item())) for name, loss in losses.items()}, compared


def differences() -> tuple[float, float]:
    """Return the largest difference of losses, and that of gradients."""
    losses, gradients = joint_step(np.load(GOLDEN))
    return largest(losses), largest(gradients)


def largest(compared: Compared) -> float:
    return max((actual - expected).abs().max().item() for actual, expected in compared.values())


def test_joint_step_equals_the_released_code(golden: np.lib.npyio.NpzFile) -> None:
    losses, gradients = joint_step(golden)
    for name, (actual, expected) in losses.items():
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=0, msg=name)
    for name, (actual, expected) in gradients.items():
        torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-5, msg=name)


def test_corrupted_tokens_equal_the_released_code(
    golden: np.lib.npyio.NpzFile, model: Model, batch: dict[str, Tensor]
) -> None:
    """Corrupted tokens and labels are equal. A sampled token that equals the original counts as original."""
    streams = {"generator": model.stack("generator")}
    assert streams["generator"] is not None
    x = streams["generator"](model.embed(batch, "generator", lambda x: x), StackInputs(self_mask(batch, "", "full")))
    table = model.embed.token.weight
    tokens, changed = ReplacedTokenSampler.sample(model.head["mlm"], x, batch, batch["tokens"], table)
    assert tokens.equal(torch.tensor(golden["corrupted_ids"]).long())
    assert changed.long().equal(torch.tensor(golden["labels"]).long())
    assert not changed.all(1).any()


def test_sampling_frequencies_match_softmax() -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(0)) * 2
    uniforms = torch.rand(200_000, generator=torch.Generator().manual_seed(1))
    sampled = pick_token(
        cumulative_shares(logits, logits.amax(-1, keepdim=True)).expand(len(uniforms), -1).contiguous(), uniforms
    )
    frequencies = torch.bincount(sampled, minlength=30) / len(uniforms)
    assert (frequencies - torch.softmax(logits, -1)[0]).abs().max() < 0.004


def test_sampling_picks_possible_tokens() -> None:
    bounds = torch.tensor([0.0, 1 - 2**-24])
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]).expand(2, -1)
    assert pick_token(cumulative_shares(logits, logits.amax(-1, keepdim=True)), bounds).tolist() == [1, 3]
    # Logits of a diverged model: any token is valid, since the loss is NaN.
    logits = torch.full((2, 5), torch.nan)
    assert pick_token(cumulative_shares(logits, logits.amax(-1, keepdim=True)), bounds).le(4).all()


def test_discriminator_loss_does_not_train_the_generator() -> None:
    """Sampling has no gradient; only the shared embedding tables are trained by both losses."""
    model, batch = tiny_model("electra"), tiny_batch("electra")
    loss, _ = model(batch).losses["replaced-token"]
    loss.backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert not any(name.startswith(("generator.", "head.mlm", "embed.widen")) for name in moved)
    assert {"embed.token.weight", "embed.norm.weight", "discriminator.0.ffn.up.weight"} <= moved


def test_encoders_learn_from_their_own_losses() -> None:
    """Gradients of the joint loss (MLM + 50 x replaced-token) equal those of each encoder's own loss to the last
    bit."""
    model, batch = tiny_model("electra"), tiny_batch("electra")
    parameters = dict(model.named_parameters())

    def gradients(**weights: float) -> dict[str, Tensor | None]:
        losses = model(batch).losses
        total = sum(weight * losses[name][0] / losses[name][1] for name, weight in weights.items())
        values = torch.autograd.grad(total, [*parameters.values()], allow_unused=True)
        return dict(zip(parameters, values, strict=True))

    generator, discriminator = gradients(mlm=1.0), gradients(**{"replaced-token": 50.0})
    joint = gradients(mlm=1.0, **{"replaced-token": 50.0})
    shared = set()
    for name, gradient in joint.items():
        from_generator, from_discriminator = generator[name], discriminator[name]
        assert gradient is not None
        if from_generator is None or from_discriminator is None:
            assert gradient.equal(from_discriminator if from_generator is None else from_generator), name
        else:
            shared.add(name)
            torch.testing.assert_close(gradient, from_generator + from_discriminator)
    assert shared == {name for name in parameters if name.startswith("embed.") and "widen" not in name}
    assert {name for name, gradient in generator.items() if gradient is None} == {
        name for name in parameters if name.startswith(("discriminator.", "head.replaced-token."))
    }


def test_discriminator_reads_sampled_tokens() -> None:
    model, batch = tiny_model("electra"), tiny_batch("electra")
    losses = {
        uniform: model({**batch, "uniforms": torch.full_like(batch["uniforms"], uniform)}).losses
        for uniform in (0.01, 0.99)
    }
    assert losses[0.01]["mlm"][0] == losses[0.99]["mlm"][0]
    assert losses[0.01]["replaced-token"][0] != losses[0.99]["replaced-token"][0]


SPECIAL = SpecialTokens(size=100, pad=96, cls=97, sep=98, mask=99, specials=frozenset({96, 97, 98, 99}))


def test_masking_matches_the_released_code() -> None:
    """Rates measured in the released code: 9.0 draws of 64 tokens, 8.4 distinct positions, four in five masked."""
    objective, rng = OBJECTIVES["replaced-token-detection"], np.random.default_rng(0)
    hidden, masked, rows = 0, 0, 3000
    for _ in range(rows):
        piece = [DocumentSlice(rng.integers(0, 96, 62), slots=2)]
        sample = objective.make_sample(piece, SampleContext(SPECIAL, rng, 64, True))
        objective.batch_spec(64, True).check(sample, maker="it")
        positions = sample["masked_positions"][sample["labels"] != IGNORED]
        assert len(set(positions)) == len(positions)
        assert not np.isin(sample["labels"], list(SPECIAL.specials)).any()
        assert (sample["replaced"] == 0).all()
        hidden += len(positions)
        masked += (sample["tokens"][positions] == SPECIAL.mask).sum()
    # Ten draws (0.15 x 64, rounded), limited to int(0.155 x 64) = 9, of 62 tokens.
    assert hidden / rows == pytest.approx(62 * (1 - (61 / 62) ** 9), rel=0.01)
    assert masked / hidden == pytest.approx(0.85, abs=0.01)


def test_export_and_import_round_trip(tmp_path: Path) -> None:
    model, batch = tiny_model("electra"), tiny_batch("electra", rows=1)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    to_hugging_face(model.spec, weights, None, tmp_path / "out")
    inputs = {"input_ids": batch["tokens"], "token_type_ids": batch["segments"]}
    logits = model.logits({name: field for name, field in batch.items() if name != "uniforms"})
    for folder, head in ((tmp_path / "out", "replaced-token"), (tmp_path / "out/generator", "mlm")):
        model_class = (
            transformers.AutoModelForPreTraining if head == "replaced-token" else transformers.AutoModelForMaskedLM
        )
        reference, info = model_class.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        with torch.no_grad():
            assert (logits[head] - reference.eval()(**inputs).logits).abs().max() <= 1e-5

    imported = from_hugging_face(tmp_path / "out")
    assert (imported.spec, imported.absent) == (model.spec, {})
    assert imported.weights.keys() == weights.keys()
    assert all(imported.weights[name].equal(weight) for name, weight in weights.items())

    file = tmp_path / "out/generator/model.safetensors"
    reference = load_file(file)
    table_name = "electra.embeddings.position_embeddings.weight"
    save_file({name: tensor.half() for name, tensor in reference.items()}, file)
    from_hugging_face(tmp_path / "out")
    save_file({**reference, table_name: reference[table_name].flip(0)}, file)
    with pytest.raises(UserError, match=r"embed.position.weight of its generator differs from the other model"):
        from_hugging_face(tmp_path / "out")


def test_import_needs_both_encoders(tmp_path: Path) -> None:
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    tokenizer = train_tokenizer_on_texts("wordpiece", [text], vocabulary=400)
    tokenizer.save(tmp_path / "tokenizer")
    model = Model(replace(tiny_spec("electra"), vocabulary=tokenizer.vocabulary))
    init_weights(model, seed=0)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    to_hugging_face(model.spec, weights, tmp_path / "tokenizer", tmp_path / "out")

    imported = import_run(str(tmp_path / "out"), tmp_path / "run")
    assert imported.newly_initialized == ()
    checkpoint = open_checkpoint(tmp_path / "run", step=0)
    assert checkpoint.spec.family == model.spec.family
    assert checkpoint.spec.size_of("generator").width == 16
    assert all(weight.equal(weights[name]) for name, weight in checkpoint.weights().items())

    shutil.rmtree(tmp_path / "out/generator")
    with pytest.raises(UserError, match="put its generator into a subfolder of that name"):
        import_run(str(tmp_path / "out"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_masked_lm_config_is_a_bert_of_its_shape() -> None:
    """The released code trains ELECTRA-sized BERTs this way; `transformers` loads them as `ElectraForMaskedLM`."""
    path = ROOT / "configs/electra/small.yaml"
    [command] = re.findall(r"^#   megaptm train (?:.*\\\n#)?.*$", path.read_text(), re.MULTILINE)
    config = load_config(path, shlex.split(command.replace("\\\n#", ""))[4:])
    spec = resolve_model(config)
    shape = {"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    with torch.device("meta"):
        reference = transformers.ElectraForMaskedLM(transformers.ElectraConfig(num_hidden_layers=12, **shape))
    model = Model(replace(spec, family=change(spec.family, heads=("mlm",))))
    assert config.built_objective.name == "masked-lm"
    # megaptm pads the vocabulary and its bias. Neither model has a pooler.
    padding = (spec.padded_vocabulary - spec.vocabulary) * (128 + 1)
    assert sum(p.numel() for p in model.parameters()) - padding == sum(p.numel() for p in reference.parameters())
