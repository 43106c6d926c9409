"""ViT: parameter count, equality with Hugging Face, export and import, configs, and training."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from click.testing import CliRunner
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import megaptm
from megaptm.__main__ import main
from megaptm.batch import IGNORED
from megaptm.config import load_config, resolve_model
from megaptm.data import Loader, open_mix, read_validation
from megaptm.errors import UserError
from megaptm.families.vit import VIT
from megaptm.families.vit.spec import CHANNELS, MASKED_PATCH, PATCH, PatchInput, patch_side, patches_per_side
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.plan.count import count_parameters, step_flops
from megaptm.spec import TokenInput, change, published_spec
from megaptm.tokenizers import load_tokenizer
from megaptm.tokenizers.labels import make_label_tokenizer
from tests.data_pipeline.images.pictures import digits
from tests.families.vision import load_reference, pixel_values, weights_of
from tests.models.test_parts import assert_parts_equal_model
from tests.models.vision import GRID, SIDE, VOCABULARY, tiny_vit, vit_batch, vit_model

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIGS = Path(__file__).parents[2] / "configs/vit"


@pytest.mark.parametrize(
    ("size", "expected"),
    [("b-16", 85_798_656), ("b-32", 87_455_232), ("l-16", 303_301_632), ("h-14", 630_764_800)],
)
def test_published_parameter_count(size, expected):
    spec = published_spec(VIT, size)
    assert count_parameters(spec) == expected
    assert count_parameters(spec, with_heads=True) == expected + spec.vocabulary * (spec.width + 1)


@pytest.mark.parametrize("both", [True, False])
def test_parameter_count_equals_built_model(both):
    model = vit_model(both=both)
    rows = model.spec.padded_vocabulary - model.spec.vocabulary
    built = sum(parameter.numel() for parameter in model.parameters()) - rows * (model.spec.width + 1)
    assert count_parameters(model.spec, with_heads=True) == built


def test_step_flops_equal_torch_counter():
    """Pixels get no gradient, and each image has one projected position."""
    model, batch = vit_model(both=False), vit_batch(3, seed=1, both=False)
    batch["image_label"] = batch["image_label"].clamp(min=0)
    # The counter does not know the fused kernel of the CPU, but plain matrix products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(batch).losses["image-label"][0].backward()
    spec = model.spec
    padding = 6 * 3 * (spec.padded_vocabulary - spec.vocabulary) * spec.width
    expected = step_flops(spec, rows=3, lengths={"encoder": GRID**2 + 1}) + padding
    assert counter.get_total_flops() == expected


def differences(folder: Path) -> tuple[float, float]:
    """Return the largest difference of logits, and that of gradients."""
    model, batch = vit_model(both=False), vit_batch(3, seed=5, both=False)
    to_hugging_face(model.spec, weights_of(model), None, folder)
    reference = load_reference(folder, transformers.ViTForImageClassification)
    expected = reference(pixel_values=pixel_values(model, batch["patches"])).logits
    logits = model.logits(batch)["image-label"]
    F.cross_entropy(expected, batch["image_label"], ignore_index=IGNORED).backward()
    loss, number = model(batch).losses["image-label"]
    (loss / number).backward()
    gradients = imported_gradients(reference, model)
    gaps = [(parameter.grad - gradients[name]).abs().max().item() for name, parameter in model.named_parameters()]
    return (logits - expected).abs().max().item(), max(gaps)


def imported_gradients(reference: transformers.PreTrainedModel, model: Model) -> dict[str, torch.Tensor]:
    """Return the reference model's gradients by megaptm's names."""
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.grad)
    converted = from_hugging_face(reference).weights
    return {name: converted[name] for name, _ in model.named_parameters()}


def test_logits_and_gradients_match_hugging_face(tmp_path):
    assert max(differences(tmp_path / "theirs")) <= 1e-5


def test_export_and_import_round_trip(tmp_path):
    model = vit_model(both=True)
    names = [f"kind {number}" for number in range(VOCABULARY - 1)]
    make_label_tokenizer(names).save(tmp_path / "names")
    exported = to_hugging_face(model.spec, weights_of(model), tmp_path / "names", tmp_path / "out")
    assert exported.left_out == ("masked-patch",)
    reference = load_reference(tmp_path / "out", transformers.ViTForImageClassification)
    assert reference.config.id2label[3] == "kind 3"
    assert reference.config.id2label[VOCABULARY - 1] == f"LABEL_{VOCABULARY - 1}"
    assert (reference.config.image_size, reference.config.patch_size) == (GRID * SIDE, SIDE)
    processor = json.loads((tmp_path / "out/preprocessor_config.json").read_text())
    # Validation images are cropped at the center.
    assert processor["size"] == {"shortest_edge": GRID * SIDE}
    assert processor["crop_size"] == {"height": GRID * SIDE, "width": GRID * SIDE}
    assert (processor["image_mean"], processor["image_std"]) == ([0.5] * 3, [0.5] * 3)
    imported = from_hugging_face(tmp_path / "out")
    assert (imported.spec.size, imported.spec.context, imported.spec.vocabulary) == (
        replace(model.spec.size, head_width=imported.spec.size.head_width),
        model.spec.context,
        VOCABULARY,
    )
    # transformers has no parameters for masked patches.
    expected = {name: weight for name, weight in weights_of(model).items() if "mask" not in name}
    assert imported.weights.keys() == expected.keys()
    assert all(imported.weights[name].equal(weight) for name, weight in expected.items())


def test_import_as_a_run(tmp_path):
    model = vit_model(both=False)
    make_label_tokenizer([f"kind {number}" for number in range(VOCABULARY)]).save(tmp_path / "names")
    to_hugging_face(model.spec, weights_of(model), tmp_path / "names", tmp_path / "out")
    result = CliRunner().invoke(main, ["import", "hf", str(tmp_path / "out"), str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert "corpus images FOLDER_OF_LABELS out=" in result.output
    config = load_config(tmp_path / "run/config.yaml")
    assert config.objective == {"image-labels": {"size": GRID * SIDE}}
    assert (config.model.patch, config.model.context, config.data.sequence) == (SIDE, GRID**2 + 1, GRID**2 + 1)
    loaded = megaptm.load(tmp_path / "run")
    assert loaded.tokenizer.name(7) == "kind 7"
    batch = vit_batch(2, seed=0, both=False)
    with torch.no_grad():
        assert loaded.model.logits(batch)["image-label"].equal(model.logits(batch)["image-label"])
    with pytest.raises(UserError, match="vit, which reads no text"):
        loaded.encode("a cat")
    with pytest.raises(UserError, match="vit does not start from a text and cannot generate"):
        loaded.generate("a cat")


def test_masked_patch_is_ignored():
    """The pixels of a masked patch change nothing; those of an unmasked patch do."""
    model, batch = vit_model(), vit_batch(2, seed=3)
    position = batch["masked_positions"][0, 1].item()
    assert batch["tokens"][0, position] == MASKED_PATCH
    changed = {**batch, "patches": batch["patches"].clone()}
    changed["patches"][0, position - 1] ^= 255
    with torch.no_grad():
        before, after = model.logits(batch), model.logits(changed)
    assert all(before[head].equal(after[head]) for head in before)
    unmasked = batch["tokens"].clone()
    unmasked[0, position] = PATCH
    with torch.no_grad():
        logits, changed_logits = (
            model.logits({**fields, "tokens": unmasked})["image-label"] for fields in (batch, changed)
        )
    assert (logits - changed_logits)[0].abs().max() > 1e-4
    assert logits[1].equal(changed_logits[1])


def test_pipeline_stages_equal_full_model():
    assert_parts_equal_model(vit_model(layers=4), vit_batch(3, seed=4), 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": {"tied": True}}, "projection on the token table"),
        ({"inputs": (PatchInput(), TokenInput())}, "other token tables"),
        ({"inputs": (PatchInput(), PatchInput())}, "two of one kind"),
    ],
)
def test_text_options_are_refused(options, message):
    spec = tiny_vit(both=False)
    with torch.device("meta"), pytest.raises(UserError, match=message):
        Model(replace(spec, family=change(spec.family, heads=(), **options)))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.sequence=50", r"data.sequence \(50\) must be model.context \(197\)"),
        ("model.patch=32", r"other patches than model.patch \(32\): its option `size`.* must be 448"),
        ("model.context=200", r"model.context \(200\) must be one more than a square.*197 or 226"),
        ("objective=masked-lm", "it provides no patches, which this family reads"),
        ("model.cutoffs=[3]", r"model.cutoffs \(\[3\]\) is not used by vit"),
        ("objective={image-labels: {size: 200}}", "in pixels, must be 224"),
        ("objective={image-labels: {area_range: [0.5, 0.1]}}", "must be a minimum, then a maximum"),
        ("objective={masked-patches: {mask_patch_prob: 0.9, random_patch_prob: 0.2}}", "sum to 1.1, more than 1"),
    ],
)
def test_invalid_config_is_refused(override, message):
    with pytest.raises(UserError, match=message):
        load_config(CONFIGS / "b-16.yaml", [override])


def test_image_options_of_text_models_are_refused():
    for override, message in (
        ("objective=image-labels", "it provides patches, which this family does not read; "),
        ("model.patch=4", "bert/base, which reads no images"),
    ):
        with pytest.raises(UserError, match=message):
            load_config(CONFIGS.parent / "bert/base.yaml", [override])


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_match_their_images(path):
    config = load_config(path)
    spec = resolve_model(config)
    patches = config.built_objective.batch_spec(config.data.sequence, True).fields["patches"]
    assert patches.shape == (patches_per_side(spec) ** 2, CHANNELS * patch_side(spec) ** 2)
    assert ("masked-patch" in spec.family.heads) == ("masked" in path.stem)


def test_recipes_match_the_paper():
    configs = {
        name: load_config(CONFIGS / f"{name}.yaml") for name in ("b-16", "b-32", "l-16", "h-14", "b-16-imagenet")
    }
    for config in configs.values():
        assert (config.train.batch, config.optimizer.warmup_steps, config.optimizer.betas) == (
            4096,
            10_000,
            (0.9, 0.999),
        )
    recipes = {
        name: (
            tested.optimizer.lr,
            tested.optimizer.weight_decay,
            tested.model.dropout,
            tested.optimizer.decay,
            tested.optimizer.clip,
        )
        for name, tested in configs.items()
    }
    imagenet_21k = (1e-3, 0.03, 0.1, "linear", None)
    assert recipes == {
        **dict.fromkeys(("b-16", "b-32", "l-16"), imagenet_21k),
        "h-14": (3e-4, 0.1, 0.0, "linear", None),
        "b-16-imagenet": (3e-3, 0.3, 0.1, "cosine", 1.0),
    }
    images = {"b-16": (14_197_122, 90), "h-14": (303_000_000, 14), "b-16-imagenet": (1_281_167, 300)}
    for name, (num_images, epochs) in images.items():
        assert configs[name].train.steps * 4096 == pytest.approx(num_images * epochs, rel=2e-3)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return digits(tmp_path_factory.mktemp("digits") / "corpus", validation=0.15)


def train_on_digits(corpus: Path, objective: str, *, steps: int) -> tuple[Model, list[list[dict[str, torch.Tensor]]]]:
    """Train a model with half the tiny config's layers on digits. Return it and validation batches."""
    image_options = {"size": 8, "crop": "none", "flip": False}
    overrides = [f"objective={json.dumps({objective: image_options})}", "model.layers=2", "model.vocabulary=10"]
    config = load_config(CONFIGS / "tiny.yaml", overrides)
    special = load_tokenizer(corpus / "tokenizer").special
    options = {"objective": config.objective, "sequence": 17, "seed": 1, "special": special}
    mix, held_out = (open_mix({str(corpus): 1.0}, split=split, **options) for split in ("train", "validation"))
    model = Model(resolve_model(config))
    init_weights(model, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    with Loader(mix, batch=64, microbatch=64) as loader:
        for step, [batch] in islice(loader, steps):
            for group in optimizer.param_groups:
                group["lr"] = 4e-3 * min(1, (step + 1) / 20)
            [(loss, number)] = model(batch).losses.values()
            optimizer.zero_grad()
            (loss / number).backward()
            optimizer.step()
    return model.eval(), [*read_validation(held_out, batch=64, microbatch=64)]


def test_model_learns_digits(corpus):
    """A random guess of validation digits is correct in 1 of 10 cases."""
    model, batches = train_on_digits(corpus, "image-labels", steps=120)
    num_correct = total = 0
    with torch.no_grad():
        for [batch] in batches:
            num_correct += (model.logits(batch)["image-label"].argmax(-1) == batch["image_label"]).sum().item()
            total += len(batch["image_label"])
    assert total >= 192
    assert num_correct / total > 0.7


def test_model_learns_masked_patches(corpus):
    """The loss is lower than the entropy of the color frequencies."""
    model, batches = train_on_digits(corpus, "masked-patches", steps=80)
    loss, counts = 0.0, np.zeros(512)
    with torch.no_grad():
        for [batch] in batches:
            loss += model(batch).losses["masked-patch"][0].item()
            counts += np.bincount(batch["patch_colors"].flatten().numpy(), minlength=512)
    shares = counts[counts > 0] / counts.sum()
    assert loss / counts.sum() < 0.9 * -(shares * np.log(shares)).sum()
