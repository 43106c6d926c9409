"""Rules for combinations of config keys."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar

import pytest

from megaptm.config import Config, Layout, load_config, resolve_model
from megaptm.config.check import check_layout, refuse_invalid_config
from megaptm.config.model import with_input_keys, with_resolved_model
from megaptm.errors import UserError
from megaptm.families import CATALOGUE, FAMILIES
from megaptm.spec import SegmentInput, change

CONFIGS = Path(__file__).parents[2] / "configs"
LATER_PHASE = re.compile("-512$|-no-dropout$|-phases$")
"""Suffix of a config that continues the run of another config."""
FAMILY_CONFIGS = sorted(path for path in CONFIGS.glob("*/*.yaml") if path.parent.name in CATALOGUE)


@pytest.mark.parametrize("path", FAMILY_CONFIGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_config_loads_its_own_model(path):
    config = load_config(path)
    assert config.run == f"runs/{path.parent.name}-{LATER_PHASE.sub('', path.stem)}"
    assert config.model.family == path.parent.name
    assert path.stem.startswith("tiny" if config.model.size == "custom" else config.model.size)


def test_every_published_size_has_a_config():
    sizes = {(name, size) for name, family in CATALOGUE.items() for size in family.sizes if "literal" not in size}
    assert sizes <= {(path.parent.name, path.stem) for path in FAMILY_CONFIGS}


def first_error(rules, config):
    try:
        rules(config)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["gpt3/small", "t5/small"])
def test_layout_is_checked_by_its_own_rules(name):
    """A search of layouts checks only rules that depend on the layout."""
    valid = load_config(CONFIGS / f"{name}.yaml", ["layout={data: 1, microbatch: 1}"])
    axes = product((2, 3), (1, 5), (1, 4), (1, 2), (1, 4), (True, False))
    keys = ("data", "tensor", "pipeline", "virtual", "microbatch", "sequence_parallel")
    layouts = [Layout(**dict(zip(keys, values, strict=True))) for values in axes]
    configs = [valid.model_copy(update={"layout": layout}) for layout in layouts]
    errors = [first_error(refuse_invalid_config, config) for config in configs]
    assert errors == [first_error(check_layout, config) for config in configs]
    assert {error.partition(" ")[0] for error in errors if error} >= {"train.batch", "layout.tensor"}
    assert None in errors


def test_custom_size():
    spec = resolve_model(load_config(CONFIGS / "gpt2/tiny.yaml", ["model.layers=3", "model.vocabulary=300"]))
    assert (spec.size.layers, spec.size.width, spec.size.heads, spec.size.ffn) == (3, 128, 4, 512)
    assert (spec.vocabulary, spec.padded_vocabulary, spec.context, spec.dropout) == (300, 384, 128, 0.0)


def test_published_size_with_another_number_of_layers():
    spec = resolve_model(load_config(CONFIGS / "gpt2" / "small.yaml", ["model.layers=6"]))
    assert (spec.size.layers, spec.size.width) == (6, 768)


@dataclass(frozen=True, kw_only=True)
class FeatherInput(SegmentInput):
    """Input of a user's family; configs have no key for its option."""

    options: ClassVar[Mapping[str, str]] = {"feathers": "rows"}


def test_option_of_a_users_input_without_a_config_key():
    record = FeatherInput(rows=3)
    assert with_input_keys(record, load_config(CONFIGS / "gpt2/tiny.yaml", []).model) == record


def test_weight_sharing():
    bert = load_config(
        CONFIGS / "bert" / "base.yaml", ["model.share=[attention, ffn]", "model.groups=3", "model.cycle=2"]
    )
    block = resolve_model(bert).family.last_block
    assert block.sharing.owners(12) == [0, 1, 4, 5, 8, 9]
    assert (block.sharing.sublayers, block.norm.position) == (("attention", "ffn"), "post")
    apart = resolve_model(load_config(CONFIGS / "albert" / "base.yaml", ["model.share=[]"])).family.last_block
    assert (apart.sharing.sublayers, apart.ffn.activation) == ((), "gelu-tanh")


@pytest.mark.parametrize(
    ("overrides", "rate"),
    [
        ([], 0.1),
        (["model.attention.dropout=true"], 0.1),
        (["model.attention.dropout=false"], 0.0),
        (["model.attention.dropout=0.3"], 0.3),
        (["model.attention.dropout=0.0"], 0.0),
    ],
)
def test_attention_dropout(overrides, rate):
    spec = resolve_model(with_resolved_model(load_config("bert/base", overrides)))
    assert spec.dropout == 0.1
    assert spec.family.last_block.attentions[0].dropout_rate(spec.dropout) == rate


def test_attention_dropout_must_be_below_1():
    with pytest.raises(UserError, match=r"attention\.dropout"):
        load_config("bert/base", ["model.attention.dropout=1.5"])


def test_saved_config_keeps_weight_sharing_when_the_family_changes(monkeypatch):
    written = with_resolved_model(load_config(CONFIGS / "albert" / "base.yaml", ["model.groups=2"]))
    assert (written.model.share, written.model.groups, written.model.cycle) == (("attention", "ffn"), 2, 1)
    albert = CATALOGUE["albert"]
    apart = change(
        albert, stacks={"encoder": change(albert.last_block, sharing={"sublayers": (), "groups": 3, "cycle": 4})}
    )
    monkeypatch.setitem(FAMILIES, "albert", apart)
    assert resolve_model(Config.model_validate_json(written.model_dump_json())).family.last_block.sharing.owners(
        12
    ) == [0, 6]


def test_sharing_that_differs_between_stacks_is_not_saved(monkeypatch):
    t5 = CATALOGUE["t5"]
    stacks = t5.stacks | {"decoder": change(t5.last_block, sharing={"sublayers": ("ffn",)})}
    monkeypatch.setitem(FAMILIES, "t5", change(t5, stacks=stacks))
    written = load_config(CONFIGS / "t5" / "tiny.yaml")
    assert (written.model.share, written.model.groups) == (None, 1)
    assert {name: block.sharing.sublayers for name, block in resolve_model(written).family.stacks.items()} == {
        "encoder": (),
        "decoder": ("ffn",),
    }


def test_processes_and_microbatches():
    config = load_config(
        CONFIGS / "gpt3" / "175b.yaml", ["layout.pipeline=16", "layout.virtual=3", "layout.microbatch=1"]
    )
    assert config.layout.processes == 1024
    assert config.microbatches == 192


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        (
            "mt5/small",
            ["data.size_limits={corpora/c4: 1000}"],
            "data.size_limits (corpora/c4) is not in data.mix; did you mean corpora/mc4?",
        ),
        ("mt5/small", ["data.size_limits={corpora/mc4: 0}"], "data.size_limits.corpora/mc4 must be at least 1, not 0."),
        (
            "mt5/small",
            ["data.size_limits={corpora/mc4: 9}", "data.size_exponent=null"],
            "data.size_limits needs data.size_exponent",
        ),
        (
            "gpt2/small",
            ["train.loss_scale={}"],
            "train.loss_scale is for train.precision=fp16, and train.precision is bf16",
        ),
        ("gpt2/small", ["layout.recompute_every=2"], "layout.recompute_every (2) needs layout.recompute"),
        ("bert/large", ["layout.tensor=3"], "layout.tensor (3) must divide the 16 attention heads of bert/large."),
        ("gpt2/tiny", ["layout.tensor=4", "model.ffn=510"], "the 510 feed-forward units of gpt2/custom"),
        (
            "gpt2/small",
            ["layout.tensor=7", "model.heads=7", "model.width=7", "model.ffn=7"],
            "50304 rows of the padded",
        ),
        (
            "transformer-xl/tiny",
            ["model.cutoffs=[9, 5]"],
            "model.cutoffs ([9, 5]) must be ascending, above 0 and below",
        ),
        (
            "gpt2/small",
            ["model.cutoffs=[5]"],
            "model.cutoffs ([5]) is not used by gpt2/small, which has no adaptive token table",
        ),
        ("vit/tiny", ["objective.image-labels.size=9"], "`size`, the side length of an image in pixels, must be 8"),
        ("gpt2/small", ["layout.pipeline=13"], "layout.pipeline (13) must be at most the 12 layers of gpt2/small."),
        (
            "gpt2/small",
            ["layout.pipeline=4", "layout.virtual=4"],
            "layout.pipeline x layout.virtual (16) must be at most the 12 layers",
        ),
        (
            "gpt2/small",
            ["layout.pipeline=4", "layout.layers_per_stage=[4,4,4]"],
            "layout.layers_per_stage must have 4 entries (layout.pipeline), not 3; auto cuts by FLOPs.",
        ),
        (
            "t5/base",
            ["layout.pipeline=2", "layout.virtual=2", "layout.layers_per_stage=[8,8]"],
            "layout.layers_per_stage must have 4 entries (layout.pipeline x layout.virtual), not 2; auto",
        ),
        (
            "t5/base",
            ["layout.pipeline=2", "layout.layers_per_stage=[12,13]"],
            "layout.layers_per_stage must have the 24 layers of t5/base in all, not 25.",
        ),
        (
            "gpt2/small",
            ["layout.pipeline=4", "layout.layers_per_stage=[4,0,4,4]"],
            "layout.layers_per_stage: only the last stage, which has the heads, may have 0 layers.",
        ),
        (
            "reformer/enwik8",
            ["layout.pipeline=2", "layout.layers_per_stage=[12,0]"],
            "layout.layers_per_stage: the last stage of reformer/enwik8 needs a layer; its heads cannot be alone.",
        ),
        (
            "gpt2/small",
            ["layout.layers_per_stage=[12]"],
            "layout.layers_per_stage needs layout.pipeline of at least 2; remove it.",
        ),
        (
            "gpt2/small",
            ["layout.layers_per_stage=even"],
            "layout.layers_per_stage must be auto, or the layers of each stage, as in [10, 12, 12, 8], not 'even'.",
        ),
        ("gpt2/small", ["layout.virtual=2"], "layout.virtual (2) needs layout.pipeline of at least 2."),
        (
            "gpt2/small",
            ["train.batch=100"],
            "train.batch (100) must be a multiple of layout.data x layout.microbatch (8 x 16); 100 sequences "
            "cannot be divided among 8 data ranks: change devices, or train.batch.",
        ),
        (
            "gpt2/small",
            ["layout.microbatch=24"],
            "(8 x 24); each data rank has 64 sequences: layout.microbatch must divide them.",
        ),
        (
            "tinybert/4x312-task",
            ["devices=64"],
            "train.batch (32) must be a multiple of layout.data x layout.microbatch (64 x 4); 32 sequences are "
            "enough for at most 32 data ranks: use fewer devices, or a larger batch.",
        ),
        (
            "gpt2/small",
            ["train.ramp={start: 64, increment: 64, samples: 9000}"],
            "train.ramp.start (64) must be a multiple of layout.data x layout.microbatch (8 x 16).",
        ),
        (
            "gpt2/small",
            ["train.ramp={start: 512, increment: 64, samples: 9000}"],
            "train.ramp.start (512) must be less than train.batch (512).",
        ),
        (
            "gpt2/tiny",
            ["layout.pipeline=2", "layout.virtual=2", "train.ramp={start: 8, increment: 8, samples: 99}"],
            "train.ramp.start (8) must be a multiple of layout.data x layout.microbatch (1 x 8, x layout.pipeline 2 "
            "for layout.virtual).",
        ),
        (
            "gpt2/tiny",
            ["layout.pipeline=2", "layout.virtual=2", "train.batch=24"],
            "layout.pipeline (2) must divide the 3 micro-batches",
        ),
        (
            "gpt2/small",
            ["layout.pipeline=2", "layout.virtual=3", "communication.batch_p2p_comm=true"],
            "communication.batch_p2p_comm cannot be used with layout.pipeline=2 and layout.virtual above 1",
        ),
        (
            "gpt2/small",
            ["layout.pipeline=4", "communication={batch_p2p_comm: true, overlap_p2p_comm: true}"],
            "communication.batch_p2p_comm and communication.overlap_p2p_comm exclude each other",
        ),
        (
            "gpt2/small",
            ["layout.pipeline=4", "communication.overlap_p2p_comm=true"],
            "communication.overlap_p2p_comm needs an interleaved schedule",
        ),
        (
            "gpt2/small",
            ["layout.sequence_parallel=true"],
            "layout.sequence_parallel needs layout.tensor of at least 2.",
        ),
        (
            "gpt2/small",
            ["layout.context=3"],
            "2 x layout.context (2 x 3) must divide the 1024 tokens of the decoder's sequence, of which each rank "
            "holds two chunks: change data.sequence.",
        ),
        (
            "gpt2/small",
            ["layout={context: 2, tensor: 4, sequence_parallel: true}", "data.sequence=1020"],
            "layout.tensor (4) must divide the 1020 / layout.context (2) tokens of the decoder's sequence",
        ),
        (
            "gpt2/small",
            ["layout.context=2", "train.attention_kernel=tiles"],
            "layout.context (2) needs train.attention_kernel auto, fused or varlen, not tiles.",
        ),
        (
            "longformer/base",
            ["layout.context=2"],
            "layout.context (2) must be 1: window attention in the encoder of longformer needs complete sequences.",
        ),
        (
            "bigbird/base",
            ["layout.context=2"],
            "layout.context (2) must be 1: blocks attention in the encoder of bigbird needs complete sequences.",
        ),
        ("xlnet/base", ["layout.context=2"], "layout.context (2) must be 1: "),
        ("reformer/enwik8", ["layout.context=2"], "layout.context (2) must be 1: "),
        ("elmo/original", ["layout.context=2"], "layout.context (2) must be 1: elmo is recurrent"),
        ("vit/b-16", ["layout.context=2"], "layout.context (2) must be 1: "),
        (
            "spanbert/base",
            ["layout.context=2"],
            "layout.context (2) must be 1: the loss span-boundary depends on several positions of a sequence.",
        ),
        ("electra/small", ["layout.context=2"], "layout.context (2) must be 1: "),
        ("glove/50d", ["layout.context=2"], "layout.context (2) is not used by glove"),
        (
            "gpt2/small",
            ["layout.sequence_parallel=true", "layout.tensor=2", "data.sequence=511"],
            "layout.tensor (2) must divide the 511 tokens of the decoder's sequence",
        ),
        (
            "t5/baseline",
            ["layout.sequence_parallel=true", "layout.tensor=4"],
            "layout.tensor (4) must divide the 114 tokens of the decoder's sequence",
        ),
        (
            "gpt2/small",
            ["data.sequence=2048"],
            "data.sequence (2048) must not exceed the 1024 learned positions of gpt2/small",
        ),
        (
            "bart/base",
            ["objective={span-corruption: {rate: 0.8}}"],
            "makes sequences of 1278 decoder_tokens from data.sequence 512, and bart/base has 1024 learned positions",
        ),
        (
            "roberta/base",
            ["objective={masked-lm: {}, next-sentence: {}}"],
            "objective (masked-lm-next-sentence) needs 2 segments, and roberta has 1: use another objective.",
        ),
        (
            "bert/base",
            ["objective={masked-lm: {task_id: 1}}"],
            "it provides task_ids, which this family does not read",
        ),
        (
            "ernie-2/base",
            ["objective={masked-lm: {task_id: 4}}"],
            "objective.masked-lm.task_id (4) must be less than the 4 task ids of ernie-2; or set model.tasks=5.",
        ),
        (
            "ernie-2/base",
            ["model.tasks=7", "objective={masked-lm: {task_id: 7}}"],
            "objective.masked-lm.task_id (7) must be less than the 7 task ids of ernie-2; or set model.tasks=8.",
        ),
        (
            "t5/base",
            ["model.init_std=0.1"],
            "model.init_std (0.1) is not used by t5/base, which initializes each weight by its own rule; remove it.",
        ),
        (
            "uniter/tiny",
            ["model.pixel_mean=[0, 0, 0]"],
            "model.pixel_mean ([0.0, 0.0, 0.0]) is not used by uniter/custom, which reads no images; remove it.",
        ),
        ("vit/tiny", ["model.pixel_std=[1, 0, 1]"], "model.pixel_std.1 must be at least 1e-06, not 0."),
        (
            "bert/base",
            ["model.tasks=2"],
            "model.tasks (2) is not used by bert/base, which reads no task ids, unlike ernie-2; remove it.",
        ),
        (
            "bert/base",
            ["objective={masked-lm: {corpora: [corpora/x]}}"],
            "objective.masked-lm.corpora (corpora/x) is not in data.mix; there are corpora/books-and-wikipedia.",
        ),
        (
            "bert/base",
            ["data.mix={corpora/a: 1, corpora/b: 1}", "objective={masked-lm: {corpora: [corpora/a]}}"],
            "data.mix has corpora/b, which no task reads: add it to a task's corpora, or remove it.",
        ),
        (
            "gpt2/small",
            ["objective=masked-lm"],
            "objective (masked-lm) does not fit gpt2: it predicts mlm from both sides of a position, and the "
            "decoder attends to one side; there are causal-lm.",
        ),
        ("gpt2/small", ["model.family=gtp2"], "model.family (gtp2) is not in the catalogue; did you mean gpt2?"),
        ("gpt2/small", ["model.size=smal"], "model.size (smal) is not a size of gpt2; did you mean small?"),
        ("gpt2/small", ["model.size=custom"], "model.size custom needs model.layers."),
        (
            "albert/base",
            ["model.groups=5", "model.cycle=3"],
            "model.groups (5) x model.cycle (3) must not exceed the 12 layers of the encoder of albert/base",
        ),
        ("gpt2/small", ["model.heads=5"], "model.heads (5) must divide the width 768 of gpt2/small"),
        (
            "gpt2/small",
            ["train.ramp={steps: {0: 256, 100: 512}, start: 8}"],
            "train.ramp.start and train.ramp.steps exclude each other; remove one.",
        ),
        ("gpt2/small", ["train.ramp={start: 8, samples: 99}"], "train.ramp.increment is missing; a ramp needs start,"),
        (
            "gpt2/small",
            ["train.ramp={steps: {0: 64, 100: 512}}"],
            "train.ramp.steps.0 (64) must be a multiple of layout.data x layout.microbatch (8 x 16).",
        ),
        (
            "gpt2/small",
            ["train.ramp={steps: {0: 128, 100: 256}}"],
            "ends with a batch size of 256, which must be train.batch (512)",
        ),
        ("gpt2/tiny", [f"optimizer.restarts=[{10**400}]"], "optimizer.restarts.0 must be at most 1000000000000000000"),
        (
            "ernie-2/base",
            ["optimizer.restarts=[20000, 24000]"],
            "optimizer.restarts: 24000 must come more than 4000 steps after 20000, the length of the rise",
        ),
        (
            "gpt2/tiny",
            ["optimizer.restarts=[30]", "train.ramp={steps: {0: 8, 100: 16}}"],
            "optimizer.restarts: 30 must come more than 20 full batches after 0, the length of the rise",
        ),
        ("t5/base", ["optimizer.decay_steps=9"], "is not used by optimizer.decay rsqrt"),
        ("t5/base", ["optimizer.stable_steps=0"], "rsqrt needs optimizer.warmup_steps"),
        ("gpt2/small", ["optimizer.decay=polynomial"], "optimizer.decay polynomial needs optimizer.power"),
        (
            "gpt2/small",
            ["optimizer.momentum=0.9"],
            "optimizer.momentum is not used by optimizer.name adamw; remove it, or choose sgd or adafactor.",
        ),
        (
            "gpt2/small",
            ["optimizer.name=lamb", "optimizer.initial_accumulator=1.0"],
            "optimizer.initial_accumulator is not used by optimizer.name lamb; remove it, or choose adagrad.",
        ),
        (
            "gpt2/small",
            ["optimizer.name=sgd", "optimizer.bias_correction=false"],
            "optimizer.bias_correction is not used by optimizer.name sgd; remove it, or choose adamw or lamb.",
        ),
        (
            "gpt2/small",
            ["optimizer.adafactor.clip_threshold=null"],
            "optimizer.adafactor is not used by optimizer.name adamw; remove it, or choose adafactor.",
        ),
        (
            "gpt2/small",
            ["optimizer.muon.momentum=0.9"],
            "optimizer.muon is not used by optimizer.name adamw; remove it, or choose muon.",
        ),
        ("gpt2/small", ["model.layers=1000000000"], "model.layers must be at most 65536, not 1000000000."),
        ("t5/base", [f"data.sequence={10**30}"], f"data.sequence must be at most 10000000, not {10**30}."),
        ("gpt2/small", ["data.workers=100000"], "data.workers must be at most 1024, not 100000."),
        ("gpt2/small", ["optimizer.power=2"], "optimizer.power is not used by optimizer.decay cosine"),
        (
            "gpt2/small",
            ["optimizer.decay=noam", "optimizer.warmup_steps=0"],
            "noam needs optimizer.warmup_steps of at least 1.",
        ),
        (
            "gpt2/small",
            ["optimizer.decay=triangular", "optimizer.stable_steps=9000"],
            "optimizer.stable_steps is not used by optimizer.decay triangular",
        ),
        (
            "gpt3/small",
            ["optimizer.stable_steps=700"],
            "optimizer.stable_steps (700) must exceed optimizer.warmup_steps (716)",
        ),
        (
            "gpt3/small",
            ["optimizer.stable_steps=1000", "optimizer.decay_steps=1000"],
            "optimizer.decay_steps (1000) must exceed optimizer.stable_steps (1000)",
        ),
        (
            "gpt2/small",
            ["train.phase_start=100000"],
            "train.phase_start (100000) must be less than train.steps (100000)",
        ),
        ("gpt3/small", ["optimizer.decay_steps=100"], "must exceed optimizer.warmup_steps (716)"),
        ("bert/base", ["model.groups=2"], "model.groups (2) is not used by bert/base, which shares no weights"),
        ("gpt2/small", ["model.cycle=3"], "model.cycle (3) is not used by gpt2/small, which shares no weights"),
        (
            "gpt2/small",
            ["train.ramp={0: 128}"],
            "override 'train.ramp={0: 128}': unknown key train.ramp.0; did you mean train.ramp.steps.0?",
        ),
        ("gpt2/small", ["optimizer.decay=cosin"], "'noam', 'halving' or 'constant', not 'cosin'; did you mean cosine?"),
        ("gpt2/small", ["optimizer.decay=inverse-sqrt"], "not 'inverse-sqrt'; did you mean rsqrt?"),
        ("gpt2/small", ["optimizer.name=AdamW"], "not 'AdamW'; did you mean adamw?"),
        (
            "gpt2/small",
            ["optimizer.betas=[0.9]"],
            "override 'optimizer.betas=[0.9]': optimizer.betas must have 2 entries, not [0.9].",
        ),
        (
            "elmo/tiny",
            ["model.filters=[[1]]"],
            "override 'model.filters=[[1]]': model.filters.0 must have 2 entries, not [1].",
        ),
        ("reformer/tiny", ["model.axial=[3]"], "model.axial must have 2 entries, not [3]."),
        ("fasttext/tiny", ["model.buckets=4294967296"], "model.buckets must be at most 1000000000, not 4294967296."),
        (
            "gpt2/small",
            ["objective={infomax: {}}"],
            "it predicts infomax from both sides of a position, and the decoder attends to one side",
        ),
        (
            "clip/tiny",
            ["train.batch=1", "layout.microbatch=1"],
            "train.batch (1) must be 2 or more: image-text compares the samples of a batch with each other.",
        ),
        ("gpt3/175b", ["model.size=175"], "model.size (175) is not a size of gpt3; did you mean 175b?"),
        (
            "gpt2/small",
            ["objective=span-corruption"],
            "this family reads tokens; write {span-corruption: {joined: true}}, or use one of its own: causal-lm.",
        ),
        (
            "ernie/base",
            ["train.steps=600000"],
            "objective.entities starts at step 666,667, and train.steps is 600,000: raise train.steps",
        ),
        (
            "gpt2/small",
            ["objective={a: {task: causal-lm, share: 0}, b: {task: causal-lm, share: 1}}"],
            "objective.a has a share of 0 at every step: give it one above 0, or remove the task.",
        ),
    ],
)
def test_invalid_combination_is_rejected(name, overrides, expected):
    with pytest.raises(UserError) as caught:
        load_config(name, overrides)
    assert expected in str(caught.value)


def test_task_may_start_at_the_end_of_the_run():
    assert load_config(CONFIGS / "ernie/base.yaml", ["train.steps=666667"]).train.steps == 666667
    assert load_config(CONFIGS / "ernie/base.yaml", ["train.stop_at=10"]).train.stop_at == 10


def test_invalid_family_type_is_the_only_error():
    with pytest.raises(UserError) as caught:
        load_config(CONFIGS / "bert/tiny.yaml", ["model.family=[bert]"])
    assert str(caught.value) == "override 'model.family=[bert]': model.family must be a string, not ['bert']."


def test_tensor_ranks_divide_key_heads_unless_there_is_one():
    assert load_config(CONFIGS / "palm/tiny.yaml", ["layout.tensor=4"]).layout.tensor == 4
    with pytest.raises(UserError, match=r"layout.tensor \(4\) must divide the 2 heads of keys and values"):
        load_config(CONFIGS / "palm/tiny.yaml", ["layout.tensor=4", "model.kv_heads=2"])
    with pytest.raises(UserError, match=r"model.kv_heads \(3\) must divide the 4 attention heads"):
        load_config(CONFIGS / "palm/tiny.yaml", ["model.kv_heads=3"])


def test_relative_positions_do_not_limit_the_sequence():
    assert load_config(CONFIGS / "t5" / "base.yaml", ["data.sequence=1024"]).data.sequence == 1024


def test_stack_with_its_own_sizes():
    config = load_config(CONFIGS / "t5/tiny.yaml", ["model.stacks.decoder={layers: 4, heads: 4}"])
    spec = resolve_model(with_resolved_model(config))
    assert [(spec.size_of(name).layers, spec.size_of(name).heads) for name in spec.family.stacks] == [(2, 2), (4, 4)]
    assert spec.size_of("decoder").width == spec.size.width


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["model.stacks.decodr={layers: 4}"],
            r"model.stacks has decodr, which is no stack of t5; did you mean decoder\?",
        ),
        (["model.stacks.decoder={heads: 3}"], r"model.stacks.decoder.heads \(3\) must divide the width 64"),
        (["model.stacks.decoder={layer: 4}"], r"did you mean model.stacks.decoder.layers\?"),
        (["model.stacks.decoder={heads: 1, head_width: 8}", "layout.tensor=2"], "must divide the 1 attention heads"),
        (["model.stacks.decoder={layers: 3}", "layout.pipeline=6", "train.batch=16"], "must be at most the 5 layers"),
    ],
)
def test_invalid_stack_sizes(overrides, expected):
    with pytest.raises(UserError, match=expected):
        load_config("t5/tiny", overrides)
