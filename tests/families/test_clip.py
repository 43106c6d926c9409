"""CLIP: parameter count, equality with Hugging Face, export and import, configs, and training."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
import transformers
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import megaptm
from data_pipeline.recipe import TokenizerRecipe
from megaptm.batch import IGNORED
from megaptm.config import load_config, resolve_model
from megaptm.data import Loader, open_mix
from megaptm.errors import UserError
from megaptm.families.clip import CLIP, head_modules
from megaptm.families.clip.head_modules import LARGEST
from megaptm.families.clip.inference import ImageTextModel, class_vectors, measure_retrieval
from megaptm.families.vit.corpus.shapes import write_shapes
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.models.head_costs import head_costs
from megaptm.models.initial import init_weights, initial_value
from megaptm.models.model import Model
from megaptm.plan.count import count_parameters, step_flops
from megaptm.spec import published_spec
from megaptm.tokenizers import load_tokenizer
from tests.data_pipeline.images.pictures import build, picture
from tests.families.vision import load_reference, pixel_values, weights_of
from tests.models.test_parts import assert_parts_equal_model
from tests.models.vision import TEXT, clip_batch, clip_model

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIGS = Path(__file__).parents[2] / "configs/clip"
HEAD = "image-text"


@pytest.mark.parametrize(
    ("size", "expected"),
    [("b-32", 151_277_313), ("b-16", 149_620_737), ("l-14", 427_616_513), ("l-14-336", 427_944_193)],
)
def test_published_parameter_count(size, expected):
    assert count_parameters(published_spec(CLIP, size)) == expected


def test_parameter_count_equals_built_model():
    model = clip_model()
    rows = model.spec.padded_vocabulary - model.spec.vocabulary
    built = sum(parameter.numel() for parameter in model.parameters()) - rows * model.spec.token_width
    assert count_parameters(model.spec, with_heads=True) == built


def test_step_flops_equal_torch_counter():
    """Pixels get no gradient, and each sequence has one projected position. The comparison of all pairs is counted per
    step."""
    model, batch = clip_model(), clip_batch(3, seed=1, all_paired=True)
    # The counter does not know the fused kernel of the CPU, but plain matrix products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(batch).losses[HEAD][0].backward()
    spec = model.spec
    [costs] = head_costs(spec).values()
    # The temperature is one of a sample's features, but in no matrix product.
    compared = 6 * 2 * 3 * 3 * costs.embedding
    expected = step_flops(spec, rows=3, lengths={"image": spec.context, "text": TEXT}) + compared
    assert counter.get_total_flops() == expected
    assert costs.compare_multiply_adds(3, 3) * 6 >= compared


def differences(folder: Path) -> tuple[float, float]:
    """Return the largest difference of features, logits and loss, and that of gradients."""
    model, batch = clip_model(), clip_batch(5, seed=5, all_paired=True)
    to_hugging_face(model.spec, weights_of(model), None, folder)
    reference = load_reference(folder, transformers.CLIPModel)
    output = reference(
        input_ids=batch["text_tokens"], pixel_values=pixel_values(model, batch["patches"]), return_loss=True
    )
    features = model(batch, features=True).features[HEAD]
    images, texts, scale = features.split([(features.shape[1] - 1) // 2] * 2 + [1], -1)
    loss, number = model(batch).losses[HEAD]
    gaps = [images - output.image_embeds, texts - output.text_embeds]
    gaps += [scale.mean() * images @ texts.t() - output.logits_per_image, loss / number - output.loss]
    output.loss.backward()
    (loss / number).backward()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.grad)
    gradients = from_hugging_face(reference).weights
    gradient_gaps = [
        (parameter.grad - gradients[name]).abs().max().item() for name, parameter in model.named_parameters()
    ]
    return max(gap.abs().max().item() for gap in gaps), max(gradient_gaps)


def test_features_loss_and_gradients_match_hugging_face(tmp_path):
    assert max(differences(tmp_path / "theirs")) <= 1e-5


def test_loss_is_mean_of_both_cross_entropies():
    """Formula of figure 3 of the paper: the positive pairs are the diagonal of cosines divided by the temperature."""
    model, batch = clip_model(), clip_batch(5, seed=5, all_paired=True)
    features = model(batch, features=True).features[HEAD]
    images, texts, scale = features.split([(features.shape[1] - 1) // 2] * 2 + [1], -1)
    assert torch.allclose(images.norm(dim=-1), torch.ones(5))
    assert torch.allclose(texts.norm(dim=-1), torch.ones(5))
    logits = scale[0] * images @ texts.t()
    rows, columns = ((logits.logsumexp(axis) - logits.diagonal()).mean() for axis in (1, 0))
    loss, number = model(batch).losses[HEAD]
    assert abs(rows - columns) > 0.01
    assert (loss / number).item() == pytest.approx(((rows + columns) / 2).item(), rel=1e-6)


def test_export_and_import_round_trip(tmp_path):
    model = clip_model()
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out")
    imported = from_hugging_face(tmp_path / "out")
    assert imported.weights.keys() == weights_of(model).keys()
    assert all(imported.weights[name].equal(weight) for name, weight in weights_of(model).items())
    assert (imported.spec.context, imported.spec.context_of("text"), imported.spec.vocabulary) == (10, TEXT, 150)
    assert imported.spec.size_of("text") == model.spec.size_of("text")


def test_temperature_is_clamped():
    model, batch = clip_model(), clip_batch(4, seed=1)
    scale = model.head[HEAD].scale
    slopes = []
    for sign in (1, -1):
        with torch.no_grad():
            scale.fill_(LARGEST + 1)
        scale.grad = None
        last = model(batch, features=True).features[HEAD][:, -1]
        assert torch.allclose(last, torch.full_like(last, 100.0))
        (sign * last.sum()).backward()
        slopes.append(scale.grad.item())
    assert slopes[0] > 0
    assert slopes[1] == 0


def test_sample_without_text_is_ignored():
    model, batch = clip_model(), clip_batch(6, seed=2)
    has_text = batch["text_end"] != IGNORED
    with torch.no_grad():
        all_samples, with_text = (
            model(batch).losses[HEAD],
            model({name: field[has_text] for name, field in batch.items()}).losses[HEAD],
        )
    assert all_samples[1] == with_text[1] == has_text.sum()
    assert all_samples[0].item() == pytest.approx(with_text[0].item(), rel=1e-6)


def test_chunked_loss_equals_full_loss(monkeypatch):
    model, batch = clip_model(), clip_batch(7, seed=6)
    features = model(batch, features=True).features[HEAD].detach()
    text_ends, results = batch["text_end"], []
    for max_rows in (1024, 2):
        monkeypatch.setattr(head_modules, "ROWS_COMPARED", max_rows)
        inputs = features.clone().requires_grad_()
        losses = model.head[HEAD].compare(inputs, text_ends, slice(1, 6))
        [gradient] = torch.autograd.grad(losses.sum(), inputs)
        results.append((losses, gradient))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-6)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-6)
    assert results[0][0].shape == (5,)


def test_tokens_after_text_end_are_ignored():
    model, batch = clip_model(), clip_batch(4, seed=3, all_paired=True)
    other = batch["text_tokens"].clone()
    other[torch.arange(TEXT) > batch["text_end"][:, None]] = 7
    with torch.no_grad():
        assert model(batch).losses[HEAD][0].equal(model({**batch, "text_tokens": other}).losses[HEAD][0])


def test_pipeline_stages_equal_full_model():
    assert_parts_equal_model(clip_model(), clip_batch(4, seed=4), 4)


def test_initial_values_are_those_of_the_paper():
    spec = replace(published_spec(CLIP, "b-32"), vocabulary=256)
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in Model(spec).named_parameters()}

    def std(name: str) -> float:
        return initial_value(spec, name, tuple(shapes[name]), 1).std().item()

    assert initial_value(spec, "head.image-text.scale", (1,), 1).exp().item() == pytest.approx(1 / 0.07, rel=1e-6)
    assert std("head.image-text.text.weight") == pytest.approx(512**-0.5, rel=0.02)
    assert std("head.image-text.image.weight") == pytest.approx(768**-0.5, rel=0.02)
    assert std("text.3.ffn.down.weight") == pytest.approx((512 * 24) ** -0.5, rel=0.02)
    assert std("image.3.ffn.up.weight") == pytest.approx((2 * 768) ** -0.5, rel=0.02)
    assert std("embed.text_position.weight") == pytest.approx(0.01, rel=0.05)
    assert std("embed.patch.project.weight") == pytest.approx((3 * 3 * 32**2) ** -0.5, rel=0.02)
    assert math.exp(LARGEST) == pytest.approx(100)


def tokenizer_recipe(size: int) -> TokenizerRecipe:
    return TokenizerRecipe(vocabulary=size, specials="clip")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Return a folder with corpora of shapes with texts, and with labels: half as many as the command makes."""
    folder = tmp_path_factory.mktemp("shapes")
    write_shapes(folder / "drawn", texts=True, number=1024)
    build(folder / "drawn", folder / "pairs", texts=True, validation=0.2, tokenizer=tokenizer_recipe(320))
    build(folder / "drawn", folder / "labels", validation=0.2)
    return folder


@pytest.fixture(scope="module")
def run(corpora):
    """Return the tiny config's model with half the layers, after 100 steps."""
    overrides = ["model.layers=2", "model.width=48", "model.ffn=96", "model.stacks.text.layers=1"]
    overrides += [f"data.mix={{{corpora / 'pairs'}: 1}}", f"run={corpora / 'run'}", "model.vocabulary=320"]
    config = load_config(CONFIGS / "tiny.yaml", overrides)
    tokenizer = load_tokenizer(corpora / "pairs/tokenizer")
    mix = open_mix(config.data.mix, objective=config.objective, sequence=17, seed=1, special=tokenizer.special)
    model = Model(resolve_model(config))
    init_weights(model, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.05)
    with Loader(mix, batch=64, microbatch=64) as loader:
        for step, [batch] in islice(loader, 100):
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * min(1, (step + 1) / 20)
            loss, number = model(batch).losses[HEAD]
            optimizer.zero_grad()
            (loss / number).backward()
            optimizer.step()
    model.eval().requires_grad_(False)
    folder = corpora / "pairs/tokenizer"
    return ImageTextModel(corpora, config, 100, model, tokenizer, folder)


def test_zero_shot_accuracy_after_training(run, corpora):
    """Validation shapes of 16 classes, of which the most frequent is 1 of 11."""
    result = run.zero_shot(corpus=corpora / "labels", templates=["a photo of a {}.", "a picture of one {}."])
    assert result.names[0] == "blue circle"
    assert len(result.cosines) > 150
    assert result.chance < 0.12
    assert result.accuracy() > 2 * result.chance


def test_retrieval_after_training(run):
    result = measure_retrieval(run)
    assert result.pairs > 150
    for shares in (result.texts_of_images, result.images_of_texts):
        assert all(shares[first] > 2 * first / result.pairs for first in (5, 10))


def test_embeddings_are_normalized_and_independent_of_batch(run):
    texts = ["a photo of a red circle.", "blue", "a yellow cross on a plain ground, and much more that nobody reads"]
    vectors = run.encode(texts)
    assert torch.allclose(vectors.norm(dim=-1), torch.ones(3))
    assert torch.allclose(run.encode(texts[:1]), vectors[:1], atol=1e-6)
    images = [picture("PNG", 32, 32, seed=seed) for seed in range(3)]
    image_vectors = run.encode_images(images)
    assert torch.allclose(run.encode_images(images[1]), image_vectors[1:2], atol=1e-6)
    result = run.zero_shot(["red", "blue"], images)
    assert result.cosines.allclose(image_vectors @ class_vectors(run, ["red", "blue"]).t(), atol=1e-6)
    assert {*result.predictions} <= {"red", "blue"}
    assert run.zero_shot("red", images[0]).predictions == ["red"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run, corpora: run.zero_shot(["a"], corpus=corpora / "pairs"), "has no labels"),
        (
            lambda run, corpora: run.zero_shot(["a"], corpus=corpora / "labels"),
            "names has 1 names, but .* has 16 labels",
        ),
        (lambda run, corpora: run.zero_shot(["a"]), "give one of them, images or a corpus"),
        (lambda run, corpora: run.zero_shot(["a"], [b"no image"]), r"images\[0\] cannot be decoded"),
        (lambda run, corpora: run.zero_shot(["a"], [picture()], templates=["a photo"]), "has no {}"),
        (lambda run, corpora: run.zero_shot(["a"], [picture()], templates=[]), "templates is empty"),
        (lambda run, corpora: run.zero_shot(corpus=corpora / "labels", rows=0), r"rows \(0\) must be 1 or more"),
        (lambda run, corpora: run.encode_images([picture()], batch=0), r"batch \(0\) must be 1 or more"),
        (lambda run, corpora: run.encode([]), "texts is empty"),
        (lambda run, corpora: run.encode_images([corpora / "none.png"]), "cannot be read"),
        (lambda run, corpora: run.generate("a"), "does not start from a text and cannot generate"),
    ],
)
def test_invalid_calls_are_refused(run, corpora, call, message):
    with pytest.raises(UserError, match=message):
        call(run, corpora)


def test_exported_processor_gives_equal_embeddings(run, tmp_path):
    model = run.model
    to_hugging_face(
        model.spec, weights_of(model), run.tokenizer_folder, tmp_path / "out", objective=run.config.built_objective
    )
    reference = load_reference(tmp_path / "out", transformers.CLIPModel)
    images = [Image.open(io.BytesIO(picture("PNG", 32, 32, seed=seed))) for seed in range(2)]
    texts = ["a photo of a red circle.", "a green cross"]
    prepared = transformers.CLIPProcessor.from_pretrained(tmp_path / "out")(
        text=texts, images=images, return_tensors="pt", padding=True
    )
    output = reference(**prepared)
    assert torch.allclose(output.text_embeds, run.encode(texts), atol=1e-5)
    image_vectors = run.encode_images([picture("PNG", 32, 32, seed=seed) for seed in range(2)])
    assert torch.allclose(output.image_embeds, image_vectors, atol=1e-5)
    reloaded = megaptm.load(tmp_path / "out")
    assert torch.allclose(reloaded.encode(texts), run.encode(texts), atol=1e-6)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.sequence=197", r"data.sequence \(197\) must not exceed the 50 learned positions"),
        (
            "objective={image-text: {text_length: 99}}",
            r"99 text_tokens .* 77 learned positions \(model.stacks.text.context\)",
        ),
        ("objective=image-labels", "it provides tokens, and this family reads tokens and text_tokens"),
        ("model.embedding=64", r"model.embedding \(64\) is not used by clip"),
        ("layout.tensor=16", "must divide the 12 attention heads"),
    ],
)
def test_invalid_config_is_refused(override, message):
    with pytest.raises(UserError, match=message):
        load_config(CONFIGS / "b-32.yaml", [override])


@pytest.mark.parametrize("size", ["b-32", "b-16", "l-14", "l-14-336"])
def test_recipes_match_the_paper(size):
    """arXiv:2103.00020, tables 18 and 19."""
    config = load_config(CONFIGS / f"{size}.yaml")
    optimizer, spec = config.optimizer, resolve_model(config)
    rate = {"b-32": 5e-4, "b-16": 5e-4, "l-14": 4e-4, "l-14-336": 2e-5}[size]
    assert spec == replace(published_spec(CLIP, size), family=spec.family)
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (rate, (0.9, 0.98), 1e-6, 0.2)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio, optimizer.clip) == (
        2000,
        "cosine",
        0.0,
        None,
    )
    epochs = 1 if size == "l-14-336" else 32
    assert (config.train.batch, config.train.steps) == (32_768, round(400e6 * epochs / 32_768))
