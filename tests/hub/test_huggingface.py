"""Exports load in `transformers`, give equal logits, and are imported bit for bit."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from megaptm.distillation.losses import add_distillation_losses
from megaptm.distillation.spec import Distillation
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.families.bert import BERT
from megaptm.families.ernie.spec import TaskInput
from megaptm.families.gpt import GPT2
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.huggingface import describe_config, from_hugging_face, hugging_face_config, to_hugging_face
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size, change, published_spec
from megaptm.tokenizers import train_tokenizer_on_texts
from tests.hub.reloaded import use_own_random_values
from tests.models.tiny import FAMILIES, has_counterpart, tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import convert_inputs


def weights_of(model: Model) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load(folder: Path, spec: ModelSpec) -> transformers.PreTrainedModel:
    """Load with transformers, which must find every key that is pre-trained, and no other."""
    model_class = getattr(transformers, find_counterpart(spec).model)
    model, info = model_class.from_pretrained(folder, output_loading_info=True)
    assert all(key.startswith(find_counterpart(spec).unused_prefixes) for key in info["missing_keys"])
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    # transformers 5 does not add Reformer's output bias.
    reversible = any(block.residual.streams > 1 for block in spec.family.stacks.values())
    return use_own_random_values(model.eval()) if reversible else model.eval()


@pytest.mark.parametrize("family", [*filter(has_counterpart, FAMILIES)])
def test_export_equals_transformers_and_round_trips(family: str, tmp_path: Path) -> None:
    model, batch = tiny_model(family), tiny_batch(family, rows=1)
    warnings = to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out").warnings
    assert bool(warnings) == family.startswith("reformer")

    reference = load(tmp_path / "out", model.spec)
    with torch.no_grad():
        logits, expected = (
            model.logits(batch)[model.spec.family.heads[0]],
            reference(**convert_inputs(family, batch))[0],
        )
    assert (logits - expected).abs().max() <= 1e-5

    imported = from_hugging_face(tmp_path / "out")
    spec, weights = imported.spec, imported.weights
    not_exported = {rule.name for rule in find_counterpart(model.spec).rules if not rule.hf_names}
    assert set(imported.absent) == not_exported
    assert (spec.size, spec.vocabulary, 24 if spec.max_text_length is None else spec.context) == (
        # Written by the export, where megaptm derives it from the context.
        replace(model.spec.size, head_width=spec.size.head_width, inputs=spec.size.inputs),
        model.spec.vocabulary,
        24,
    )
    assert weights.keys() == weights_of(model).keys() - not_exported
    for name, weight in weights.items():
        assert weights_of(model)[name].equal(weight), name


def test_distillation_projection_is_not_exported(tmp_path: Path) -> None:
    spec = tiny_spec("tinybert")
    distillation = Distillation(teacher=spec, weights={"embeddings": 1.0}, layers={"encoder": ()}, projection="shared")
    student = Model(spec)
    add_distillation_losses(student, distillation)
    init_weights(student, seed=7)
    to_hugging_face(spec, weights_of(student), None, tmp_path / "out")
    imported = from_hugging_face(tmp_path / "out", family="tinybert")
    assert imported.weights.keys() == weights_of(student).keys() - {"distill.shared.weight", "distill.shared.bias"}


@pytest.mark.parametrize("family", ["deberta", "deberta-v2", "deberta-v3"])
def test_export_warns_of_missing_mask_decoder(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    warnings = " ".join(to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out").warnings)
    assert "transformers has no mask decoder" in warnings
    assert ("no head for replaced tokens" in warnings) == (family == "deberta-v3")


def test_export_names_heads_left_out(tmp_path: Path) -> None:
    ernie_heads = ("capitalization", "token-document", "sentence-reordering")
    for family, lacking in (("spanbert", ("span-boundary",)), ("ernie-2", ernie_heads), ("albert", ())):
        model = tiny_model(family)
        assert to_hugging_face(model.spec, weights_of(model), None, tmp_path / family).left_out == lacking


def test_added_head_is_not_exported(tmp_path: Path) -> None:
    spec = tiny_spec("bert")
    spec = replace(spec, family=change(spec.family, heads=(*spec.family.heads, "sentence-distance")))
    init_weights(model := Model(spec), seed=1)
    to_hugging_face(spec, weights_of(model), None, tmp_path / "out")
    load(tmp_path / "out", spec)
    imported = from_hugging_face(tmp_path / "out")
    assert {*weights_of(model)} - {*imported.weights} == {
        f"head.sentence-distance.{name}.{kind}" for name in ("pooler", "classify") for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("tasks", [3, 7, 16])
def test_number_of_task_ids(tasks: int, tmp_path: Path) -> None:
    """The default is 3; the released models have 16, and the paper of ERNIE 2.0 has 7."""
    spec = tiny_spec("ernie-2")
    config = hugging_face_config(spec)
    assert config.task_type_vocab_size == 4
    config.task_type_vocab_size = tasks
    reference = transformers.ErnieForMaskedLM(config).eval()
    reference.save_pretrained(tmp_path / "theirs")
    imported = from_hugging_face(tmp_path / "theirs")
    table = reference.ernie.embeddings.task_type_embeddings.weight
    assert imported.weights["embed.task.weight"].equal(table.detach())
    assert imported.spec.family == spec.family.with_input(TaskInput(rows=tasks))
    init_weights(model := Model(imported.spec), seed=1)
    to_hugging_face(imported.spec, weights_of(model), None, tmp_path / "ours")
    assert load(tmp_path / "ours", imported.spec).config.task_type_vocab_size == tasks


def test_export_in_bfloat16(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out", dtype=torch.bfloat16)
    reference = load(tmp_path / "out", model.spec)
    assert {parameter.dtype for parameter in reference.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("family", "kind", "expected"),
    [
        ("gpt2", "byte-bpe", {"eos_token_id": "<|endoftext|>"}),
        ("bert", "wordpiece", {"pad_token_id": "[PAD]"}),
        ("t5", "unigram", {"pad_token_id": "<pad>", "eos_token_id": "</s>", "decoder_start_token_id": "<pad>"}),
    ],
)
def test_export_has_the_tokenizer(family: str, kind: str, expected: dict[str, str], tmp_path: Path) -> None:
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    tokenizer = train_tokenizer_on_texts(kind, [text], vocabulary=400)
    tokenizer.save(tmp_path / "tokenizer")
    spec = replace(tiny_spec(family), vocabulary=tokenizer.vocabulary)
    model = Model(spec)
    init_weights(model, seed=0)
    to_hugging_face(spec, weights_of(model), tmp_path / "tokenizer", tmp_path / "out")

    hf_tokenizer, config = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "out"),
        load(tmp_path / "out", spec).config,
    )
    ids = hf_tokenizer.encode("def wrap(text):", add_special_tokens=False)
    assert ids == tokenizer.encode("def wrap(text):").tolist()
    for field, token in expected.items():
        assert getattr(config, field) == hf_tokenizer.convert_tokens_to_ids(token)


def test_exported_gpt2_generates(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out")
    prompt = tiny_batch("gpt2", rows=1)["tokens"][:, :4]
    generated = load(tmp_path / "out", model.spec).generate(prompt, max_new_tokens=5, do_sample=False)
    tokens = prompt
    for _ in range(5):
        with torch.no_grad():
            tokens = torch.cat([tokens, model.logits({"tokens": tokens})["lm"][:, -1:].argmax(-1)], 1)
    assert generated.equal(tokens)


def test_export_keeps_existing_files(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("mine")
    model = tiny_model("gpt2")
    with pytest.raises(UserError, match="not empty"):
        to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


def test_failed_export_leaves_no_files(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    weights = weights_of(model)
    del weights["decoder.1.ffn.up.weight"]
    with pytest.raises(UserError, match=r"lack decoder\.1\.ffn\.up\.weight"):
        to_hugging_face(model.spec, weights, None, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_too_large_tokenizer_is_refused(tmp_path: Path) -> None:
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    train_tokenizer_on_texts("byte-bpe", [text], vocabulary=400).save(tmp_path / "tokenizer")
    model = tiny_model("gpt2")
    with pytest.raises(UserError, match="400 tokens, more than the 101 of the model"):
        to_hugging_face(model.spec, weights_of(model), tmp_path / "tokenizer", tmp_path / "out")


@pytest.mark.parametrize(
    ("family", "options"), [("longformer", {"dilation": 2}), ("bigbird", {"edge_blocks": False})], ids=str
)
def test_unsupported_pattern_is_refused(family: str, options: dict[str, Any]) -> None:
    """The weights would fit, but compute something else."""
    table = CATALOGUE[family]
    other = change(table, stacks={"encoder": change(table.last_block, attention=options)})
    [name] = options
    with pytest.raises(UserError, match=rf"model\.attention\.{name} is .* but .* cannot be exported"):
        find_counterpart(published_spec(other, "base"))
    assert find_counterpart(published_spec(table, "base"))


def test_model_without_counterpart_is_refused() -> None:
    with pytest.raises(UserError, match="no counterpart"):
        find_counterpart(
            published_spec(
                change(GPT2, stacks={"decoder": change(GPT2.last_block, ffn={"activation": "swiglu"})}), "small"
            )
        )
    with pytest.raises(UserError, match="24 x 128 is not 2048"):
        find_counterpart(published_spec(CATALOGUE["gpt3"], "xl-literal"))
    spec = tiny_spec("gpt1")
    with pytest.raises(UserError, match="needs ffn = 4 x width, but ffn is 64 and width 32"):
        find_counterpart(replace(spec, size=change(spec.size, ffn=64)))


def test_counterpart_does_not_depend_on_tokenizer() -> None:
    own = change(BERT, name="own", tokenizer={"kind": "byte-bpe", "specials": "roberta"})
    assert find_counterpart(published_spec(own, "base")).model == "BertForPreTraining"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, activation_function="relu"),
            "activation",
        ),
        (transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, embd_pdrop=0.3), "embd_pdrop"),
        (transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, scale_attn_weights=False), "scale_attn"),
    ],
)
def test_unsupported_field_is_refused(config: transformers.GPT2Config, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_hugging_face(transformers.GPT2LMHeadModel(config))


def test_legacy_rope_fields() -> None:
    config = hugging_face_config(tiny_spec("palm")).to_dict()
    del config["rope_parameters"]
    assert describe_config(config | {"rope_theta": 10_000, "rope_scaling": None})[1].size == tiny_spec("palm").size
    for fields, message in (
        ({"rope_theta": 500.0}, "'rope_theta': 500.0"),
        ({"rope_theta": 10_000, "rope_scaling": {"type": "linear", "factor": 2.0}}, "'factor': 2.0"),
        ({"rope_scaling": "twice"}, "transformers rejects it"),
    ):
        with pytest.raises(UserError, match=message):
            describe_config(config | fields)


def test_differing_dropouts_are_reported() -> None:
    config = hugging_face_config(replace(tiny_spec("bart"), dropout=0.1))
    assert not from_hugging_face(transformers.BartForConditionalGeneration(config)).differing_dropouts
    config.attention_dropout = config.activation_dropout = 0.0  # as in bart-large-cnn
    imported = from_hugging_face(transformers.BartForConditionalGeneration(config))
    assert (imported.spec.dropout, imported.differing_dropouts) == (
        0.1,
        ("attention_dropout 0.0", "activation_dropout 0.0"),
    )
    config = hugging_face_config(tiny_spec("palm"))
    config.attention_dropout = 0.1
    imported = from_hugging_face(transformers.CohereForCausalLM(config))
    assert (imported.spec.dropout, imported.differing_dropouts) == (0.0, ("attention_dropout 0.1",))


WITH_ATTENTION_DROPOUT = ("gpt1", "gpt2", "bert", "roberta", "albert", "deberta", "ernie-2", "electra-discriminator")


@pytest.mark.parametrize("family", WITH_ATTENTION_DROPOUT)
def test_attention_dropout_is_separate(family: str) -> None:
    """Configs of BERT and GPT-2 have a separate field for it."""
    full_spec = replace(tiny_spec(family.removesuffix("-discriminator")), dropout=0.1)
    spec = (
        replace(full_spec, family=full_spec.family.with_only_stack("discriminator"))
        if full_spec.family.sampled
        else full_spec
    )
    config = hugging_face_config(spec).to_dict()
    field = "attn_pdrop" if family.startswith("gpt") else "attention_probs_dropout_prob"
    assert config[field] == 0.1
    default = describe_config(config)[1]
    assert default.family.first_block.attentions[0].dropout is True
    for rate in (0.0, 0.25):
        described = describe_config(config | {field: rate})[1]
        assert (described.dropout, described.family.first_block.attentions[0].dropout) == (0.1, rate)
        assert hugging_face_config(described).to_dict() == config | {field: rate}


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    config = transformers.OPTConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, ffn_dim=8, vocab_size=9)
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"model_type 'opt' cannot be imported: it must be one of .*gpt2, .*bert, .*t5"):
        from_hugging_face(tmp_path)


def test_default_configs_are_published_sizes() -> None:
    """The default configs of transformers are the published base sizes."""
    for config, family, size in (
        (transformers.OpenAIGPTConfig(), "gpt1", "base"),
        (transformers.GPT2Config(), "gpt2", "small"),
        (transformers.BertConfig(), "bert", "base"),
        (transformers.T5Config(), "t5", "small"),
    ):
        spec = describe_config({**vars(config), **config.to_dict()})[1]
        expected = published_spec(CATALOGUE[family], size)
        assert spec.family == expected.family
        assert spec.size == Size(
            **{name: getattr(expected.size, name) for name in ("layers", "width", "heads", "ffn")},
            head_width=expected.size.key_width if family == "t5" else None,
        )
        assert (spec.vocabulary, spec.context, spec.dropout) == (expected.vocabulary, expected.context, 0.1)


def test_tied_mt5_is_imported_untied(tmp_path: Path) -> None:
    """The class ties the two tables by default, and saves one of them."""
    config = transformers.MT5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=101)
    reference = transformers.MT5ForConditionalGeneration(config).eval()
    reference.save_pretrained(tmp_path)
    imported = from_hugging_face(tmp_path)
    assert not imported.absent
    assert imported.weights["head.lm.table.weight"].equal(imported.weights["embed.token.weight"])


@pytest.mark.parametrize("family", ["t5-v1.1", "mt5"])
def test_untied_t5_config_is_version_1_1(family: str) -> None:
    """In published configs, scaling of the decoder output follows from `tie_word_embeddings`."""
    expected = published_spec(CATALOGUE[family], "small")
    config = {"model_type": expected.name.partition("-")[0], "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0}
    numbers = {"d_model": 512, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "vocab_size": expected.vocabulary}
    spec = describe_config({**config, **numbers, "tie_word_embeddings": False})[1]
    assert replace(spec, context=expected.context) == expected
