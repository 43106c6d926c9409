"""A folder we export loads in `transformers` whole, says the same, and comes back to the bit."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT2
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.huggingface import describe_config, from_hugging_face, hugging_face_config, to_hugging_face
from megaptm.models import Model, build_model, fill
from megaptm.spec import Distillation, ModelSpec, Size, change, published
from megaptm.tokenizers import train
from tests.hub.reloaded import drawing_ours
from tests.models.tiny import FAMILIES, has_counterpart, tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import inputs_of


def weights_of(model: Model) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load(folder: Path, spec: ModelSpec) -> transformers.PreTrainedModel:
    """With transformers' own loader, which must find every key that pre-training has, and no other."""
    model_class = getattr(transformers, find_counterpart(spec).model)
    model, info = model_class.from_pretrained(folder, output_loading_info=True)
    assert all(key.startswith(find_counterpart(spec).unused_prefixes) for key in info["missing_keys"])
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    # A Reformer of transformers 5 has a bias that it does not add.
    reversible = any(block.reversible for block in spec.family.stacks.values())
    return drawing_ours(model.eval()) if reversible else model.eval()


@pytest.mark.parametrize("family", [*filter(has_counterpart, FAMILIES)])
def test_an_exported_folder_says_the_same_and_comes_back(family: str, tmp_path: Path) -> None:
    model, batch = tiny_model(family), tiny_batch(family, rows=1)
    told = to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out").warnings
    assert bool(told) == family.startswith("reformer")

    theirs = load(tmp_path / "out", model.spec)
    with torch.no_grad():
        ours, said = model.logits(batch)[model.spec.family.heads[0]], theirs(**inputs_of(family, batch))[0]
    assert (ours - said).abs().max() <= 1e-5

    found = from_hugging_face(tmp_path / "out")
    spec, weights = found.spec, found.weights
    own = {rule.name for rule in find_counterpart(model.spec).rules if not rule.hf_names}
    assert set(found.absent) == own
    assert (spec.size, spec.vocabulary, 24 if spec.longest is None else spec.context) == (
        # Said, where ours was left to follow from the context.
        replace(model.spec.size, head_width=spec.size.head_width, axial=spec.size.axial),
        model.spec.vocabulary,
        24,
    )
    assert weights.keys() == weights_of(model).keys() - own
    for name, weight in weights.items():
        assert weights_of(model)[name].equal(weight), name


def test_maps_to_the_width_of_a_teacher_stay_behind(tmp_path: Path) -> None:
    spec = tiny_spec("tinybert")
    wanted = Distillation(teacher=spec, weights={"embeddings": 1.0}, layers={"encoder": ()}, projection="shared")
    student = Model(spec, distillation=wanted)
    fill(student, seed=7)
    to_hugging_face(spec, weights_of(student), None, tmp_path / "out")
    found = from_hugging_face(tmp_path / "out", family="tinybert")
    assert found.weights.keys() == weights_of(student).keys() - {"distill.shared.weight", "distill.shared.bias"}


@pytest.mark.parametrize("family", ["deberta", "deberta-v2", "deberta-v3"])
def test_an_export_says_what_theirs_does_not_compute(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    told = " ".join(to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out").warnings)
    assert "transformers has no mask decoder" in told
    assert ("no head for replaced tokens" in told) == (family == "deberta-v3")


def test_an_export_names_heads_of_the_family_that_theirs_has_not(tmp_path: Path) -> None:
    of_ernie = ("capitalization", "token-document", "sentence-reordering")
    for family, lacking in (("spanbert", ("span-boundary",)), ("ernie-2", of_ernie), ("albert", ())):
        model = tiny_model(family)
        assert to_hugging_face(model.spec, weights_of(model), None, tmp_path / family).left_out == lacking


def test_a_head_that_an_objective_has_added_stays_behind(tmp_path: Path) -> None:
    spec = tiny_spec("bert")
    spec = replace(spec, family=change(spec.family, heads=(*spec.family.heads, "sentence-distance")))
    fill(model := build_model(spec), seed=1)
    to_hugging_face(spec, weights_of(model), None, tmp_path / "out")
    load(tmp_path / "out", spec)
    found = from_hugging_face(tmp_path / "out")
    assert {*weights_of(model)} - {*found.weights} == {
        f"head.sentence-distance.{name}.{kind}" for name in ("pooler", "classify") for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("tasks", [3, 7, 16])
def test_a_table_of_tasks_is_as_long_as_theirs(tasks: int, tmp_path: Path) -> None:
    """Three by default there, sixteen in the released models, seven in the paper of ERNIE 2.0."""
    spec = tiny_spec("ernie-2")
    config = hugging_face_config(spec)
    assert config.task_type_vocab_size == 4
    config.task_type_vocab_size = tasks
    theirs = transformers.ErnieForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    found = from_hugging_face(tmp_path / "theirs")
    table = theirs.ernie.embeddings.task_type_embeddings.weight
    assert found.weights["embed.task.weight"].equal(table.detach())
    assert found.spec.family == change(spec.family, tasks=tasks)
    fill(model := build_model(found.spec), seed=1)
    to_hugging_face(found.spec, weights_of(model), None, tmp_path / "ours")
    assert load(tmp_path / "ours", found.spec).config.task_type_vocab_size == tasks


def test_bfloat16_is_written_when_asked(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out", dtype=torch.bfloat16)
    theirs = load(tmp_path / "out", model.spec)
    assert {parameter.dtype for parameter in theirs.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("family", "kind", "expected"),
    [
        ("gpt2", "byte-bpe", {"eos_token_id": "<|endoftext|>"}),
        ("bert", "wordpiece", {"pad_token_id": "[PAD]"}),
        ("t5", "unigram", {"pad_token_id": "<pad>", "eos_token_id": "</s>", "decoder_start_token_id": "<pad>"}),
    ],
)
def test_the_tokenizer_travels_along(family: str, kind: str, expected: dict[str, str], tmp_path: Path) -> None:
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    tokenizer = train(kind, [text], vocabulary=400)
    tokenizer.save(tmp_path / "tokenizer")
    spec = replace(tiny_spec(family), vocabulary=tokenizer.vocabulary)
    model = build_model(spec)
    fill(model, seed=0)
    to_hugging_face(spec, weights_of(model), tmp_path / "tokenizer", tmp_path / "out")

    theirs, config = transformers.AutoTokenizer.from_pretrained(tmp_path / "out"), load(tmp_path / "out", spec).config
    ids = theirs.encode("def wrap(text):", add_special_tokens=False)
    assert ids == tokenizer.encode("def wrap(text):").tolist()
    for field, token in expected.items():
        assert getattr(config, field) == theirs.convert_tokens_to_ids(token)


def test_a_gpt_folder_generates(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out")
    prompt = tiny_batch("gpt2", rows=1)["tokens"][:, :4]
    written = load(tmp_path / "out", model.spec).generate(prompt, max_new_tokens=5, do_sample=False)
    ours = prompt
    for _ in range(5):
        with torch.no_grad():
            ours = torch.cat([ours, model.logits({"tokens": ours})["lm"][:, -1:].argmax(-1)], 1)
    assert written.equal(ours)


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("mine")
    model = tiny_model("gpt2")
    with pytest.raises(UserError, match="not empty"):
        to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    weights = weights_of(model)
    del weights["decoder.1.ffn.up.weight"]
    with pytest.raises(UserError, match=r"lack decoder\.1\.ffn\.up\.weight"):
        to_hugging_face(model.spec, weights, None, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_too_big_for_the_model_is_refused(tmp_path: Path) -> None:
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    train("byte-bpe", [text], vocabulary=400).save(tmp_path / "tokenizer")
    model = tiny_model("gpt2")
    with pytest.raises(UserError, match="400 tokens, more than the 101 of the model"):
        to_hugging_face(model.spec, weights_of(model), tmp_path / "tokenizer", tmp_path / "out")


@pytest.mark.parametrize(
    ("family", "words"), [("longformer", {"dilation": 2}), ("bigbird", {"edge_blocks": False})], ids=str
)
def test_a_pattern_that_theirs_has_not_is_refused(family: str, words: dict[str, Any]) -> None:
    """Its weights would fit, and say something else."""
    table = CATALOGUE[family]
    other = change(table, stacks={"encoder": change(table.last_block, attention=words)})
    [name] = words
    with pytest.raises(UserError, match=rf"model\.attention\.{name} is .* but .* cannot be exported"):
        find_counterpart(published(other, "base"))
    assert find_counterpart(published(table, "base"))


def test_a_model_that_computes_something_else_is_refused() -> None:
    with pytest.raises(UserError, match="no counterpart"):
        find_counterpart(
            published(change(GPT2, stacks={"decoder": change(GPT2.last_block, ffn={"activation": "swiglu"})}), "small")
        )
    with pytest.raises(UserError, match="24 x 128 is not 2048"):
        find_counterpart(published(CATALOGUE["gpt3"], "xl-literal"))
    spec = tiny_spec("gpt1")
    with pytest.raises(UserError, match="needs ffn = 4 x width, but ffn is 64 and width 32"):
        find_counterpart(replace(spec, size=change(spec.size, ffn=64)))


def test_a_family_that_differs_in_its_tokenizer_alone_has_the_same_counterpart() -> None:
    own = change(BERT, name="own", tokenizer="byte-bpe", specials="roberta")
    assert find_counterpart(published(own, "base")).model == "BertForPreTraining"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, activation_function="relu"),
            "activation",
        ),
        (transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, embd_pdrop=0.3), "embd_pdrop"),
        (transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, scale_attn_weights=False), "scale_attn"),
    ],
)
def test_what_we_could_not_honor_is_named(config: transformers.GPT2Config, said: str) -> None:
    with pytest.raises(UserError, match=said):
        from_hugging_face(transformers.GPT2LMHeadModel(config))


def test_what_turns_queries_is_read_where_older_files_have_it() -> None:
    config = hugging_face_config(tiny_spec("palm")).to_dict()
    del config["rope_parameters"]
    assert describe_config(config | {"rope_theta": 10_000, "rope_scaling": None})[1].size == tiny_spec("palm").size
    for more, said in (
        ({"rope_theta": 500.0}, "'rope_theta': 500.0"),
        ({"rope_theta": 10_000, "rope_scaling": {"type": "linear", "factor": 2.0}}, "'factor': 2.0"),
        ({"rope_scaling": "twice"}, "transformers rejects it"),
    ):
        with pytest.raises(UserError, match=said):
            describe_config(config | more)


def test_dropouts_that_are_others_here_are_told() -> None:
    config = hugging_face_config(replace(tiny_spec("bart"), dropout=0.1))
    assert not from_hugging_face(transformers.BartForConditionalGeneration(config)).differing_dropouts
    config.attention_dropout = config.activation_dropout = 0.0  # as in bart-large-cnn
    found = from_hugging_face(transformers.BartForConditionalGeneration(config))
    assert (found.spec.dropout, found.differing_dropouts) == (0.1, ("attention_dropout 0.0", "activation_dropout 0.0"))
    config = hugging_face_config(tiny_spec("palm"))
    config.attention_dropout = 0.1
    found = from_hugging_face(transformers.CohereForCausalLM(config))
    assert (found.spec.dropout, found.differing_dropouts) == (0.0, ("attention_dropout 0.1",))


OF_ITS_OWN = ("gpt1", "gpt2", "bert", "roberta", "albert", "deberta", "ernie-2", "electra-discriminator")


@pytest.mark.parametrize("family", OF_ITS_OWN)
def test_attention_may_have_a_dropout_of_its_own(family: str) -> None:
    """As in published models: BERT's and GPT-2's configs have a rate for it."""
    whole = replace(tiny_spec(family.removesuffix("-discriminator")), dropout=0.1)
    spec = replace(whole, family=whole.family.alone("discriminator")) if whole.family.drawn else whole
    config = hugging_face_config(spec).to_dict()
    theirs = "attn_pdrop" if family.startswith("gpt") else "attention_probs_dropout_prob"
    assert config[theirs] == 0.1
    again = describe_config(config)[1]
    assert again.family.first_block.attentions[0].dropout is True
    for rate in (0.0, 0.25):
        found = describe_config(config | {theirs: rate})[1]
        assert (found.dropout, found.family.first_block.attentions[0].dropout) == (0.1, rate)
        assert hugging_face_config(found).to_dict() == config | {theirs: rate}


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    config = transformers.OPTConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, ffn_dim=8, vocab_size=9)
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"model_type 'opt' cannot be imported: it must be one of .*gpt2, .*bert, .*t5"):
        from_hugging_face(tmp_path)


def test_published_configs_are_our_tables() -> None:
    """Their default configs are the published base sizes."""
    for config, family, size in (
        (transformers.OpenAIGPTConfig(), "gpt1", "base"),
        (transformers.GPT2Config(), "gpt2", "small"),
        (transformers.BertConfig(), "bert", "base"),
        (transformers.T5Config(), "t5", "small"),
    ):
        spec = describe_config({**vars(config), **config.to_dict()})[1]
        expected = published(CATALOGUE[family], size)
        assert spec.family == expected.family
        assert spec.size == Size(
            **{name: getattr(expected.size, name) for name in ("layers", "width", "heads", "ffn")},
            head_width=expected.size.key_width if family == "t5" else None,
        )
        assert (spec.vocabulary, spec.context, spec.dropout) == (expected.vocabulary, expected.context, 0.1)


def test_an_mt5_that_has_become_one_with_its_table_comes_in_with_two_alike(tmp_path: Path) -> None:
    """Their class ties the two where it is not begun from published weights, and saves the table once."""
    config = transformers.MT5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=101)
    theirs = transformers.MT5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    found = from_hugging_face(tmp_path)
    assert not found.absent
    assert found.weights["head.lm.table.weight"].equal(found.weights["embed.token.weight"])


@pytest.mark.parametrize("family", ["t5-v1.1", "mt5"])
def test_configs_that_say_they_are_not_tied_are_the_later_t5s(family: str) -> None:
    """As published: what the head does follows from `tie_word_embeddings`, which is all that the file says of it."""
    expected = published(CATALOGUE[family], "small")
    config = {"model_type": expected.name.partition("-")[0], "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0}
    numbers = {"d_model": 512, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "vocab_size": expected.vocabulary}
    spec = describe_config({**config, **numbers, "tie_word_embeddings": False})[1]
    assert replace(spec, context=expected.context) == expected
