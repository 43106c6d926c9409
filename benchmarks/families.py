"""Training step of every family beside the model of Hugging Face's that computes the same: same machine, same minute.

    python benchmarks/families.py [--families bert t5] [--layers 4] [--rounds 3] [--threads 2]
        [--processor-time] [--packed] [--peer-keeps-memory]

Both have the family's layers at width 768 and its vocabulary, train on the same ids and labels with fused AdamW and
gradient clipping, without dropout, and take the losses that theirs has; ours is the whole engine. Rounds alternate,
and ratios are of medians. bf16: ours keeps fp32 masters; the peer is measured with fp32 weights under autocast, which
keeps as much, and all in bf16, which does not. The first counts, unless it fails (DeBERTa's). `--packed`: our rows
hold two documents apart from each other, theirs one of half the length and padding, as they are trained without a
packing collator; tokens are those that are not padding. Images are of 224 pixels in patches of 16, four for each row of
text; theirs come normalized, and places are counted as tokens. Where Hugging Face has no class of the family, one that
does the same work stands for it: BERT that is given the mask for UniLM; GPT-Neo, which does not scale its scores and
has fewer biases, for GPT-3 with bands; two of their models, trained as `common/replaced.py` writes it, for ELECTRA and
DeBERTa-v3.

Theirs runs in a process of its own, as its users run it: our engine tells the allocator of its process to keep what is
freed (`megaptm.cpu_tuning.keep_freed_memory`), which would make theirs faster, too; `--peer-keeps-memory` tells theirs
the same, so that what remains is the work itself.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from common.alone import join_alone
from common.batches import Draw, Fields, head_fields, numbers_of, read_fields
from common.image_batches import image_batch, image_inputs, image_spec
from common.options import Options
from common.peer import training_step
from common.peer_process import PeerProcess
from common.replaced import ReplacedTokenModels, proportions
from common.rounds import median_seconds
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.bricks import HEADS, HeadBrick
from megaptm.bricks.heads import RowClassHeadBrick
from megaptm.errors import UserError
from megaptm.families import CATALOGUE, VISION
from megaptm.families.bert import BERT
from megaptm.hub.counterparts import find_counterpart, hugging_face_models
from megaptm.spec import BAND, Family, ModelSpec, Size, change, with_attention_options

KNOWN = CATALOGUE | VISION
ASKED = 0.15
"""Share of the places that a masked language model is asked about."""
IMAGE_ROWS = 4
"""Images for each row of text: they are shorter, and what CLIP compares are rows."""
STANDS_FOR = {"gpt3-banded": "GPTNeoForCausalLM", "unilm": "BertForPreTraining"}
"""Family without a class of its own -> one that does the same work."""
METRIC_LETTERS = re.compile("[^a-z0-9]")
"""What a metric's name has no place for."""
SECOND = 4
"""A decoder's rows have a fourth of the places of the encoder's, as T5's."""


def spec_of(name: str, *, layers: int, width: int, length: int) -> ModelSpec:
    """A size of the family's that takes a CPU a second; without a mask decoder, which theirs have not."""
    table = KNOWN[name]
    if table.reads_images:
        return image_spec(table, layers=layers, width=width, length=length)
    once = {stack: change(block, last_layer="once") for stack, block in table.stacks.items()}
    # Theirs fill rows up to whole windows, beyond the places that they have.
    once = {
        stack: with_attention_options(one, {"window": min(length, window)})
        if isinstance(window := getattr(one.attention, "window", None), int)
        else one
        for stack, one in once.items()
    }
    depth = layers // len(table.stacks)
    numbers = numbers_of(table, embedding=width // 6, band=BAND)  # ALBERT base: 128 of 768
    size = Size(layers=depth, width=width, heads=max(1, width // 64), ffn=4 * width, **numbers)
    if table.drawn:
        size = change(size, stacks=proportions(table.sizes["base"], size))
    return ModelSpec(
        family=change(table, stacks=once), size=size, vocabulary=table.vocabulary, context=length, dropout=0.0
    )


def compared_heads(family: Family, model: str) -> tuple[str, ...]:
    """Those whose losses their `model` takes too: of tokens, and of rows where its class is one for pre-training."""

    def is_theirs(brick: type[HeadBrick]) -> bool:
        of_rows = issubclass(brick, RowClassHeadBrick) and model.endswith("ForPreTraining")
        return of_rows or brick.answers == HeadBrick.answers

    if family.reads_images or family.drawn:
        return family.heads
    return tuple(head for head in family.heads if is_theirs(HEADS[head]))


def batch_of(spec: ModelSpec, heads: tuple[str, ...], rows: int, length: int, *, documents: int = 1) -> Fields:
    """Ours: rows of so many documents, each by itself; where it is one, nobody needs to be told."""
    family = change(spec.family, heads=heads)
    draw = Draw(torch.Generator().manual_seed(0), spec.vocabulary, lowest=5)
    lengths = dict(zip(dict.fromkeys(family.prefixes.values()), (length, length // SECOND), strict=False))

    def places() -> tuple[Tensor, Tensor]:
        order = torch.rand(rows, length, generator=draw.generator).argsort(1)
        asked = order[:, : max(1, int(ASKED * length))].sort(1)[0]
        return asked, torch.ones_like(asked, dtype=torch.bool)

    def each(numbers: Tensor) -> Tensor:
        return numbers.expand(rows, -1).contiguous()

    numbers = {prefix: each(1 + torch.arange(s) // (s // documents)) for prefix, s in lengths.items()}
    batch = read_fields(family, numbers, draw)
    batch |= {f"{prefix}positions": each(torch.arange(s) % (s // documents)) for prefix, s in lengths.items()}
    if "segment" in family.inputs:
        batch["segments"] = torch.zeros(rows, length, dtype=torch.int64)
    if "task" in family.inputs:
        batch["task_ids"] = torch.zeros(rows, dtype=torch.int64)
    batch |= head_fields(
        family, batch, draw, positions=places, answers=lambda brick: torch.arange(rows) % brick.classes
    )
    # Pre-training marks no token that sees all.
    left_out = ("global_tokens", *(("document_ids",) if documents == 1 else ()))
    return {name: field for name, field in batch.items() if not name.endswith(left_out)}


def theirs_of(heads: tuple[str, ...], model: str, batch: Fields, *, documents: int = 1) -> Fields:
    """The same for their `model`: rows of a document each, padded to the length of ours where ours hold several."""
    names = {"tokens": "input_ids", "segments": "token_type_ids", "decoder_tokens": "decoder_input_ids"}
    found = {name: batch[own] for own, name in names.items() if own in batch}
    if "masked_positions" in batch:
        found["labels"] = torch.full_like(batch["tokens"], IGNORED)
        found["labels"].scatter_(1, batch["masked_positions"], batch["labels"])
    elif "decoder_tokens" in batch:
        found["labels"] = batch["labels"]
    else:  # theirs shift by themselves
        found["labels"] = batch["labels"].roll(1, 1)
    for brick in (HEADS[head] for head in heads):
        if issubclass(brick, RowClassHeadBrick):
            name = "sentence_order_label" if model.startswith("Albert") else "next_sentence_label"
            found[name] = batch[brick.answers]
    if "order" in batch:
        found["attention_mask"] = (batch["order"][:, None, :] <= batch["order"][:, :, None])[:, None]
    if documents == 1:
        return found
    padded = {name: _apart(value, documents, IGNORED if name == "labels" else 0) for name, value in found.items()}
    for name, mask in {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}.items():
        if name in found:
            padded[mask] = _apart(torch.ones_like(found[name]), documents, 0)
    return padded


def _apart(rows: Tensor, documents: int, fill: int) -> Tensor:
    """[B, S] of several documents -> [B x documents, S] of one each and padding, each asked what the row is."""
    if rows.dim() == 1:
        return rows.repeat_interleave(documents)
    each = rows.unflatten(1, (documents, -1)).flatten(0, 1)
    return torch.nn.functional.pad(each, (0, rows.shape[1] - each.shape[1]), value=fill)


def ours(spec: ModelSpec, heads: tuple[str, ...], precision: str, batch: Fields) -> Callable[[], object]:
    from megaptm.config import Layout, OptimizerConfig
    from megaptm.parallel.build import build_engine

    layout = Layout(microbatch=len(batch["tokens"]))
    optimizer = OptimizerConfig(lr=1e-4, clip=1.0, weight_decay=0.1)
    engine = build_engine(spec, layout, optimizer, losses=dict.fromkeys(heads, 1.0), seed=0, precision=precision)
    engine.fill()
    steps = iter(range(10**9))
    return lambda: engine.train_step([dict(batch)], step=next(steps), lr=1e-4)


def their_config(spec: ModelSpec) -> Any:
    import transformers

    from megaptm.hub.huggingface import hugging_face_config

    if spec.name == "unilm":
        config = hugging_face_config(replace(spec, family=BERT))
        config.type_vocab_size = spec.family.segments
        return config
    if spec.name == "gpt3-banded":
        return transformers.GPTNeoConfig(
            vocab_size=spec.vocabulary,
            hidden_size=spec.width,
            intermediate_size=spec.size.ffn,
            num_layers=spec.layers,
            num_heads=spec.size.heads,
            max_position_embeddings=spec.context,
            window_size=spec.size.band,
            attention_types=[[["global", "local"], spec.layers // 2]],
            **dict.fromkeys(("resid_dropout", "embed_dropout", "attention_dropout"), 0.0),
        )
    return hugging_face_config(spec)


def hugging_face(spec: ModelSpec, model: str, precision: str, inputs: Mapping[str, Any]) -> Callable[[], object]:
    import transformers

    if spec.family.drawn:
        return training_step(ReplacedTokenModels(spec), precision, **inputs)
    config = their_config(spec)
    config.use_cache = False
    if (getattr(config, "pad_token_id", None) or 0) >= spec.vocabulary:  # Marian's own, where the config says none
        config.pad_token_id = 0
    return training_step(getattr(transformers, model)._from_config(config), precision, **inputs)


def runs(step: Callable[[], object]) -> bool:
    """Whether it can be done; theirs cannot always."""
    try:
        step()
    except RuntimeError:
        return False
    return True


def comparable(length: int) -> dict[str, str]:
    """Families that Hugging Face has, or whose work a class of theirs does, and the class."""
    found = {}
    for name, table in KNOWN.items():
        if name in STANDS_FOR:
            found[name] = STANDS_FOR[name]
        elif table.drawn and (models := hugging_face_models(table)):
            found[name] = " and ".join(models)
        if name in found or any(block.ordered for block in table.stacks.values()):
            continue
        try:
            found[name] = find_counterpart(spec_of(name, layers=2 * len(table.stacks), width=64, length=length)).model
        except UserError:
            continue
    return found


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--layers", default=4, short=2, help="of all stacks")
    arguments.add("--width", default=768, short=64)
    arguments.add("--length", default=512, short=32)
    arguments.add("--rows", default=2, short=2)
    arguments.add("--rounds", default=3, short=1)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add(
        "--families", default=[], short=["bert", "t5", "vit", "clip"], nargs="+", type=str, help="instead of all"
    )
    arguments.add_argument(
        "--processor-time",
        action="store_true",
        help="instead of the clock's: for a machine that has other work as well",
    )
    arguments.add_argument("--packed", action="store_true", help="rows of two documents beside padded ones")
    arguments.add_argument("--peer-keeps-memory", action="store_true", help="theirs does, as ours always does")
    options = arguments.read()
    torch.set_num_threads(options.threads)
    documents = 2 if options.packed else 1
    clock = time.process_time if options.processor_time else time.perf_counter

    join_alone()
    peer = PeerProcess(threads=options.threads, keeps_memory=options.peer_keeps_memory)
    known, metrics = comparable(options.length), []
    if options.packed:
        known = {name: one for name, one in known.items() if not KNOWN[name].reads_images and name != "unilm"}
    if unknown := set(options.families) - set(known):
        arguments.error(f"--families: {', '.join(sorted(unknown))} cannot be compared; these can: {', '.join(known)}")
    print(f"{'tokens/s':<16}{'':<8}{'megaptm':>10}{'autocast':>10}{'all bf16':>10}{'ratio':>8}")
    for name in options.families or known:
        spec = spec_of(name, layers=options.layers, width=options.width, length=options.length)
        heads = compared_heads(spec.family, known[name])
        inputs: Mapping[str, Any]
        if spec.family.reads_images:
            batch = image_batch(spec, IMAGE_ROWS * options.rows)
            inputs = image_inputs(spec, batch)
        else:
            batch = batch_of(spec, heads, options.rows, options.length, documents=documents)
            inputs = theirs_of(heads, known[name], batch, documents=documents)
        tokens = sum(value.numel() for field, value in batch.items() if field.endswith("tokens"))
        for precision, peers in {"fp32": ["fp32"], "bf16": ["bf16 autocast", "all bf16"]}.items():
            contenders = {"megaptm": ours(spec, heads, precision, batch)}
            contenders |= {one: peer.build(hugging_face, spec, known[name], one, inputs) for one in peers}
            able = {who: step for who, step in contenders.items() if runs(step)}
            seconds = median_seconds(able, options.rounds, clock)
            ratio = next(seconds[one] for one in peers if one in seconds) / seconds["megaptm"]
            cells = "".join(
                f"{tokens / seconds[who]:>10,.0f}" if who in seconds else f"{'-':>10}" for who in contenders
            )
            print(f"{name:<16}{precision:<8}{cells:<30}{ratio:>8.2f}", flush=True)
            kind = "packed_over_padded" if options.packed else "over_transformers"
            metric = f"family_{METRIC_LETTERS.sub('_', name)}_{precision}_{kind}"
            metrics.append(f"METRIC {metric} {ratio:.3f} ratio goal >=1.2")
            # Before the next are built: of large vocabularies there is no place for two.
            peer.forget()
            contenders.clear()
            able.clear()
            gc.collect()
    print("\n".join(metrics))


if __name__ == "__main__":
    main()
