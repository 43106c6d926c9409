"""What a config may say: one class a section, one sentence a field.

The defaults here add nothing: no decay, no clipping, no warm-up, one process. The recipe that we recommend is
`configs/defaults.yaml`, and a config takes it by extending it. `None` means absent.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from megaptm.batch_schedule import BatchSchedule
from megaptm.errors import UserError
from megaptm.families import find_family
from megaptm.objectives import Objective, objective_of
from megaptm.objectives.objective import RowLength, Weight

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


Counts = Count | Annotated[tuple[Count, ...], Field(min_length=1), Strict(False)]
"""One for all layers, or several, which they take in turn."""


class Section(BaseModel):
    """Frozen, and a key that is not a field is refused; `config.errors` words what is told of a mistake."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Shape(Section):
    """Numbers of a stack of layers."""

    # Each is walked over: of so many a plan takes a second.
    layers: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Layers of each stack; absent: the size's."""
    width: Count | None = None
    """Width of the residual stream; absent: the size's."""
    heads: Count | None = None
    """Attention heads; absent: the size's."""
    ffn: Count | None = None
    """Inner width of the feed-forward, or features of a recurrent layer's cell; absent: the size's."""
    head_width: Count | None = None
    """Width of one head; absent: the size's, or width / heads."""
    kv_heads: Count | None = None
    """Heads of keys and values, each for as many of heads; absent: the size's, or heads."""
    band: Count | None = None
    """Places that one sees to a side where the family's attention is banded; absent: the size's, or 256."""
    memory: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    """Places before a row that each layer remembers from earlier steps, where the family's attention is relative; of
    recurrent ones 1, their state, or 0; absent: the size's, or none."""
    context: Count | None = None
    """Longest sequence with a learned position, where it is not that of other stacks; absent: the size's."""


class ModelConfig(Shape):
    """Which model: a family, a size of it, and what differs from the published one."""

    family: str
    """Name in the catalogue (`megaptm families`), or a `Family` of your own: package.module:NAME."""
    size: str
    """Row of the family's table of sizes, or `custom` with layers, width, heads and ffn given."""
    vocabulary: Count | None = None
    """Number of token ids, that of the corpus's tokenizer or more; absent: that of the corpus, or, where there is none
    yet, the published one."""
    context: Count | None = None
    """Longest sequence with a learned position; absent: the published one, of the size where sizes differ in it."""
    dropout: Fraction | None = None
    """Dropout rate everywhere in the model; absent: the published one."""
    z_loss: Annotated[float, Field(ge=0.0)] | None = None
    """How much of the squared logarithm of the softmax's normalizer the loss of a token has besides; absent: the
    published one."""
    label_smoothing: Fraction | None = None
    """Share of the probability that is asked of all tokens alike, in training; absent: the published one."""
    init_std: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Standard deviation of the normal numbers that weights begin with, where the family says one for all; absent: the
    published one, 0.02. Narrow models learn sooner by about the root of one over their width."""
    tasks: Count | None = None
    """Ids of tasks, which a family with a table of them tells from each other; absent: the published number."""
    buckets: Count | None = None
    """Of fastText: rows that pieces of words share by a hash; absent: the size's."""
    ngrams: Annotated[tuple[Count, Count], Strict(False)] | None = None
    """Of fastText: characters of the shortest and of the longest piece of a word; absent: the size's."""
    hidden: Annotated[int, Field(ge=0)] | None = None
    """Of NNLM and C&W: units between the vectors of a window and what is said of it; absent: the size's."""
    before: Count | None = None
    """Of NNLM and C&W: words of a window before the one that it is asked about; absent: the size's."""
    after: Annotated[int, Field(ge=0)] | None = None
    """Of C&W: words of a window after that one; absent: the size's."""
    direct: bool | None = None
    """Of NNLM: whether vectors are also mapped to the next word directly, past the hidden units; absent: the size's."""
    embedding: Count | None = None
    """Width of the token table, where it is not the stream's; absent: the size's."""
    patch: Annotated[int, Field(ge=1, le=1 << 12)] | None = None
    """Where images are read: pixels of a side of a patch; absent: the size's. model.context is one more than
    their number."""
    detector: Annotated[tuple[Count, Count], Strict(False)] | None = None
    """Where regions of images are read: numbers of a region's features, and classes of what found it, the background
    among them; absent: the size's."""
    vectors: str | None = None
    """Text file of word vectors, a line each (GloVe's and word2vec's text formats): words of the vocabulary that it has
    begin with these; absent: all begin as the others do."""
    cutoffs: Annotated[tuple[Count, ...], Strict(False)] | None = None
    """Ids from which on words, most frequent first, are in the next cluster of an adaptive input and softmax, or [];
    absent: the size's."""
    division: Count | None = None
    """What the width of each next cluster's table is divided by; absent: the size's."""
    filters: Annotated[tuple[Annotated[tuple[Count, Count], Strict(False)], ...], Strict(False)] | None = None
    """Where words are read by their characters: [characters, filters] of each convolution; absent: the size's."""
    highway: Annotated[int, Field(ge=0, le=1 << 10)] | None = None
    """Highway layers behind these filters; absent: the size's."""
    character_width: Count | None = None
    """Numbers of a character's vector; absent: the size's."""
    negatives: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    """Words that stand for all others in the softmax of training, drawn by rank in each step (ELMo: 8,192), or 0: all
    are compared; absent: the published number."""
    stacks: dict[str, Shape] = {}
    """Stack (encoder, decoder) -> what of its numbers is not as above."""
    share: Annotated[tuple[Literal["attention", "cross", "ffn"], ...], Strict(False)] | None = None
    """Sub-layers whose weights layers have in common: any of attention, cross, ffn, or []; absent: the family's."""
    groups: Count | None = None
    """Consecutive groups of layers, each of which shares within itself; absent: the family's."""
    cycle: Count | None = None
    """Layers of a group that differ, in turn; absent: the family's."""
    attention_dropout: bool | Fraction | None = None
    """Whether dropout falls on what attention weighs by, too, or a rate of its own; absent: the family's."""
    window: Counts | None = None
    """Places that one sees besides itself where the family's attention is a window, half to each side; or a list, which
    layers take in turn; absent: the family's."""
    dilation: Counts | None = None
    """Places from one that is seen to the next, where attention is a window; or a list; absent: the family's."""
    block: Count | None = None
    """Places of a block where the family's attention is of blocks; absent: the family's."""
    random_blocks: Annotated[int, Field(ge=0, le=1 << 10)] | None = None
    """Blocks that are drawn for each, to be seen besides its neighbors; absent: the family's."""
    blocks_seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    """By which they are drawn, besides layer and head; absent: the family's."""
    chunk: Counts | None = None
    """Places of a chunk where the family's attention is local or lsh; or a list, which layers take in turn; absent: the
    family's."""
    hashes: Annotated[int, Field(ge=1, le=1 << 10)] | None = None
    """How often places are hashed, where the family's attention is lsh; absent: the family's."""
    hash_buckets: Counts | None = None
    """What a hash tells apart, where the family's attention is lsh, even; or a list of such, whose product it is;
    absent: the family's."""
    axial: Annotated[tuple[Count, Count], Strict(False)] | None = None
    """Rows and columns of the rectangle in which places lie, where the family's positions are axial; absent: the
    size's, or of another context nearly a square."""

    @field_validator("size", mode="before")
    @classmethod
    def _size_is_a_name(cls, said: Any) -> Any:
        """YAML reads `175` as a number: that it is no size is told by who knows the sizes."""
        return str(said) if isinstance(said, int | float) and not isinstance(said, bool) else said


class DataConfig(Section):
    """What is read."""

    mix: Annotated[dict[str, Annotated[float, Field(gt=0.0)]], Field(min_length=1)]
    """Corpus folder or URL -> weight; weights count tokens and need not sum to one."""
    size_exponent: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Power of a corpus's number of documents by which its weight is multiplied; weights then count documents. 1: each
    is as likely (T5), or 1 / a temperature; mT5: 0.3. Absent: weights count tokens, whatever a corpus holds."""
    size_limits: dict[str, Count] = {}
    """Corpus -> documents above which it counts as if it had so many, for size_exponent (T5's artificial limit)."""
    sequence: RowLength
    """Tokens of one row (T5: of the encoder's row; the decoder's follows)."""
    epochs: Count | None = None
    """How often any text may be read; steps that need more are refused before the start. Absent: as often as needed."""
    dupe_factor: Count | None = None
    """Epochs after which the same rows come again, with the same noise: 1 for masks that never change, 10 for BERT's
    data, written in ten copies. Absent: each epoch has an order and noise of its own (RoBERTa's dynamic masks)."""
    document_mask: bool = True
    """Whether attention stops at document borders within a row; absent: yes, but where rows go on from step to step."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 1
    """Background processes that prepare samples, for each process that reads; 0: none, read in the training process."""
    verify: Literal["hash", "size", "none"] = "hash"
    """How a shard is compared with the manifest when it is first read: every byte (a second a GB), or its size."""
    cache: str | None = None
    """Folder of this machine that keeps shards of corpora at URLs; absent: ~/.cache/megaptm."""
    cache_bytes: Count = 64 << 30
    """What it may hold; the shards used least recently leave."""
    patience: Annotated[float, Field(gt=0.0, le=1500.0)] = 600.0
    """Seconds to wait for a server that does not answer, before the run saves and stops; processes wait 30 minutes
    for each other, so it must be less."""


class Layout(Section):
    """How the run is spread over processes."""

    data: Count = 1
    """Copies of the model, each reading its own part of the batch."""
    tensor: Count = 1
    """Processes that share each layer."""
    pipeline: Count = 1
    """Stages the layers are cut into."""
    virtual: Count = 1
    """Chunks of layers on each stage; more than 1 is the interleaved schedule."""
    sequence_parallel: bool = False
    """Whether norms and dropout are split along the sequence over the tensor processes."""
    distributed_optimizer: bool = False
    """Whether the optimizer's state is split over the data processes."""
    microbatch: Count = 1
    """Rows in one forward pass."""
    recompute: Literal["none", "full"] = "none"
    """Which activations are computed again in the backward pass: none, or whole layers."""

    @property
    def processes(self) -> int:
        """Processes of the whole run."""
        return self.data * self.tensor * self.pipeline


class CommunicationConfig(Section):
    """How the processes of a run send each other what they must. Times depend on it, numbers do not; the names are
    megatron-core's."""

    overlap_grad_reduce: bool = True
    """Whether gradients are summed over data ranks while the backward pass goes on, or after it."""
    batch_p2p_comm: bool = False
    """Whether what a pipeline stage sends and receives at once is one batch, or a message each."""
    overlap_p2p_comm: bool = False
    """Whether an interleaved pipeline computes while it sends; a stage's outputs then stay in memory until the end."""


class DeviceLayout(Section):
    """Layouts for machines of several sizes, in a file that is read; the config that is made of it has one `layout`."""

    devices: Count | None = None
    """Processes of the run, each on a device; absent: those of the smallest row of layouts."""
    layouts: dict[Annotated[Count, Strict(False)], Layout] = {}
    """Number of devices -> layout for so many and more, without `data`, which follows; keys of `layout` win."""


class AdafactorConfig(Section):
    """What Adafactor has of its own; the defaults are T5's."""

    factor_from: Count | None = 128
    """Of a matrix whose sides are both so long or longer, means of rows and of columns are kept in the place of each
    element's; null: of none (PaLM)."""
    update_clip: Annotated[float, Field(gt=0.0)] | None = 1.0
    """Largest root mean square of a tensor's update; null: any."""
    scale_parameter: bool = True
    """Whether lr is relative to the root mean square of the tensor that is moved, at least 0.001."""


class OptimizerConfig(Section):
    """How weights move."""

    name: Literal["adamw", "lamb", "adafactor", "sgd", "adagrad"] = "adamw"
    """The update rule."""
    lr: Annotated[float, Field(gt=0.0)]
    """Peak learning rate."""
    betas: Annotated[tuple[Fraction, Fraction], Strict(False)] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square (adamw, lamb)."""
    bias_correction: bool = True
    """Whether these means are divided by what they lack, as both begin at zero (adamw, lamb); the released code of
    BERT, ALBERT and ELECTRA does not."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    """Added to the root of the mean, or the sum, of squares (adamw, lamb, adagrad)."""
    momentum: Fraction = 0.0
    """Decay of the running mean of gradients (sgd) or of updates (adafactor); 0: none is kept."""
    initial_accumulator: Annotated[float, Field(ge=0.0)] = 0.0
    """What the sum of squares begins with (adagrad)."""
    adafactor: AdafactorConfig = AdafactorConfig()
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Decay of weights beside the rule's update; of sgd and adagrad a part of the gradient, as torch has it."""
    weight_decay_times: Literal["lr", "lr-squared"] = "lr"
    """What weight_decay is multiplied by for the share of a weight that a step takes off; lr-squared: PaLM's."""
    weight_decay_on: Literal["matrices", "all"] = "matrices"
    """What decays: all but norms and biases, or all. What does not, lamb moves as adamw would."""
    clip: Annotated[float, Field(gt=0.0)] | None = None
    """Largest norm of the whole gradient; absent: no clipping."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the rate rises linearly from zero to its peak; triangular: from final."""
    stable_steps: Annotated[int, Field(ge=0)] = 0
    """Step, counted from the start of the run, until which the rate stays at its peak; 0: it falls at once."""
    decay: Literal[
        "cosine", "linear", "polynomial", "triangular", "rsqrt", "inverse", "noam", "halving", "constant"
    ] = "constant"
    """How the rate falls; rsqrt: lr * sqrt(N / step), N where the fall begins; noam, the Transformer's: so, with a peak
    of lr / sqrt(width * warmup_steps); triangular: linear, both ways; polynomial: (share of steps left) ^ power;
    inverse, NNLM's: lr / (1 + steps of the fall / N), N decay_steps; halving, CoVe's: by half once a held-out loss is
    above the one before it, and again after each decay_steps."""
    power: Annotated[float, Field(gt=0.0)] | None = None
    """Exponent of polynomial; 1 is linear."""
    final: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """The rate never falls below this fraction of its peak; what falls to an end, ends on it."""
    decay_steps: Count | None = None
    """Step, counted from the start of the run, at which the fall ends; absent: train.steps. inverse: steps after which
    half of the rate is left; halving: after which half of what was left is, an epoch's."""
    counts: Literal["batches", "steps"] = "batches"
    """What all these steps are where the batch ramps: as many rows as whole batches have, or steps of any size."""


class RampConfig(Section):
    """A batch that grows: linearly in the samples seen, by the first three keys, or at given steps."""

    start: Count | None = None
    """Rows of the first step."""
    increment: Count | None = None
    """By so many rows it grows at a time."""
    samples: Count | None = None
    """Rows read when it has grown to train.batch."""
    steps: dict[Annotated[int, Field(ge=0), Strict(False)], Count] = {}
    """Step -> rows from it on; the first is 0, and the last rows are those of train.batch."""


class TrainConfig(Section):
    """How long, how much at a time, and what is said meanwhile."""

    steps: Count
    """Optimizer steps of the whole run."""
    after: Annotated[int, Field(ge=0)] = 0
    """Steps of the run's phase before this one, whose last checkpoint it continues; only rows and layout may differ."""
    batch: Count
    """Rows in one step, over all processes."""
    ramp: RampConfig | None = None
    """Fewer rows at the beginning; `optimizer.counts` says what the learning rate makes of it."""
    skip: dict[Annotated[Count, Strict(False)], Count] = {}
    """Steps done -> batches of text that are passed over then. To a run that was trained entries may be added, for a
    spike of its loss: it goes back to its newest checkpoint of so many steps or fewer."""
    seed: Annotated[int, Field(ge=0)] = 1234
    """Everything random follows from it."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Number format of weights and activations in the model; the optimizer always keeps fp32."""
    deterministic: bool = False
    """Whether GPUs, too, give the same bits each time, by slower kernels and collectives; a CPU gives them anyway."""
    attention_kernel: Literal["auto", "fused", "tiles", "flex", "flash-attn", "transformer-engine"] = "auto"
    """What computes attention; auto: torch's fused kernel, and where a pattern leaves out much of a row one that leaves
    it out. Another that cannot say who sees whom is refused."""
    stop_at: Count | None = None
    """Save and leave after this step as if a signal had come, with exit code 75; absent, or where the run is past it:
    run to the end."""
    log_every: Count = 1
    """Steps between two records of metrics; the first step and the last are recorded, too."""
    validate_every: Count | None = None
    """Steps between two measurements of the validation loss; absent: only after the last step."""
    validate_batches: Count = 8
    """Batches of one such measurement."""
    threads: Count | None = None
    """CPU threads of each process; absent: the machine's cores shared equally."""
    hang_seconds: Annotated[float, Field(ge=1.0)] | None = 300.0
    """A run that stands still for so long, and for ten of its steps, is ended, to be started again; 20 times as long in
    start-up (five minutes at least), validation and saving. null: never."""


class CheckpointConfig(Section):
    """When the run is saved. The last step and a signal always save."""

    every: Count = 1000
    """Steps between two checkpoints."""
    keep: Count = 2
    """Newest checkpoints that are kept; where disk is short the oldest leaves before the next is written, never the
    last one."""
    asynchronous: bool = True
    """Train on while a checkpoint is written, from a copy of weights and moments in host memory; the last step and a
    signal wait for it."""


class TrackConfig(Section):
    """Where metrics go besides the run folder's own metrics.jsonl."""

    enabled: bool = True
    """Whether metrics are sent to MLflow."""
    uri: str | None = None
    """MLflow tracking address, without a password; absent: mlflow.db beside the run folder, for all runs there."""
    experiment: str = "megaptm"
    """MLflow experiment."""


class DistillConfig(Section):
    """A teacher that a model learns from, beside its objective; weights of 0 are no losses (docs/distillation.md)."""

    teacher: str
    """Folder of the run that the teacher is of; a model of Hugging Face's becomes one by `megaptm import hf`."""
    step: Annotated[int, Field(ge=0)] | None = None
    """Of which checkpoint; absent: the newest when the run begins."""
    model: dict[str, Any] = {}
    """Keys of a section `model`: what the teacher is. Absent: what its run says, where that is there."""
    objective: Weight = 1.0
    """What weights of the objective's own losses are multiplied by."""
    logits: Weight = 0.0
    """Of what the teacher says of each word (`soft`)."""
    answers: Weight = 0.0
    """Of what the teacher says of each question of the objective that has classes of rows (`soft`)."""
    cosine: Weight = 0.0
    """Of the angle between the states that the last stacks give."""
    embeddings: Weight = 0.0
    """Of the square of what the states that stacks read lack to the teacher's."""
    hidden: Weight = 0.0
    """Of the same of what layers give, summed over layers."""
    scores: Weight = 0.0
    """Of the same of attention's scores before the softmax, summed over layers."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """What logits of both, of words and of classes, are divided by before the softmax."""
    soft: Literal["kl", "cross-entropy"] = "kl"
    """kl: divergence times the squared temperature, a mean over places (DistilBERT); cross-entropy: a mean over places
    and words (TinyBERT)."""
    places: Literal["all", "asked"] = "all"
    """Places whose logits are compared: all that are no padding, or those that the objective asks about."""
    layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False)] = ()
    """Of each layer of a stack, the teacher's (0 is the first) whose states and scores it is compared with; absent: the
    last of each of as many equal groups."""
    layer_weights: Annotated[tuple[Weight, ...], Strict(False)] = ()
    """Of each layer of a stack, what its losses are multiplied by; absent: 1."""
    projection: Literal["none", "shared", "by-kind"] = "none"
    """Learned maps from the width of the student's states to the teacher's: one for all, or one for embeddings and one
    for hidden states."""
    initial_layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False)] = ()
    """The teacher's layers (0 is the first) that those of a stack begin as, with its tables and heads; absent: it
    begins as it does without a teacher."""


def _with_objective(values: dict[str, Any]) -> dict[str, Any]:
    """An absent objective is the family's; of a family that is none, or not in the catalogue, others tell."""
    if values.get("objective") is not None:
        return values
    model = values.get("model")
    name = model.get("family") if isinstance(model, dict) else getattr(model, "family", None)
    family = None
    with suppress(UserError):
        family = find_family(name) if isinstance(name, str) else None
    return {**values, "objective": family.objectives[0] if family is not None else "unknown"}


def _with_borders(values: dict[str, Any]) -> dict[str, Any]:
    """An absent data.document_mask is false where rows go on: what is remembered is of any document."""
    data = values.get("data")
    if not isinstance(data, dict) or "document_mask" in data:
        return values
    with suppress(Exception):  # of an objective that is none, others tell
        if objective_of(values["objective"]).unit == "lane":
            return {**values, "data": {**data, "document_mask": False}}
    return values


class Config(Section):
    """One run."""

    run: str
    """Folder of the run: config, checkpoints, events, metrics."""
    objective: str | dict[str, Any]
    """Pre-training objective: one of the family's by its name, an `Objective` of your own (package.module:NAME), or
    composed of tasks, as in {masked-lm: {rate: 0.2}, sentence-order: {}} (docs/objectives.md); absent: the family's
    first."""
    model: ModelConfig
    data: DataConfig
    layout: Layout = Layout()
    communication: CommunicationConfig = CommunicationConfig()
    optimizer: OptimizerConfig
    train: TrainConfig
    distill: DistillConfig | None = None
    """A teacher, and what is learned of it (docs/distillation.md)."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    track: TrackConfig = TrackConfig()

    @model_validator(mode="before")
    @classmethod
    def _what_is_absent(cls, values: Any) -> Any:
        return _with_borders(_with_objective(values)) if isinstance(values, dict) else values

    @field_validator("objective", mode="before")
    @classmethod
    def _one_kind_or_the_other(cls, said: Any) -> Any:
        """Not told by both kinds of the field."""
        if not isinstance(said, (str, dict)) or not all(isinstance(label, str) for label in said):
            raise PydanticCustomError("objective", "a name, or a mapping of tasks to their options")
        return said

    @field_validator("objective")
    @classmethod
    def _steps_are_numbers(cls, said: Any) -> Any:
        """A config that was written has the keys of JSON, which are strings."""
        if not isinstance(said, dict):
            return said
        return {
            label: _with_steps(options) if isinstance(options, dict) else options for label, options in said.items()
        }

    @property
    def built_objective(self) -> Objective:
        """What `objective` says, made."""
        return objective_of(self.objective)

    @property
    def microbatches(self) -> int:
        """Forward passes of one process in one step of a whole batch."""
        return self.train.batch // (self.layout.data * self.layout.microbatch)

    @property
    def batch_schedule(self) -> BatchSchedule:
        """Which rows each step takes."""
        batch, ramp, skips = self.train.batch, self.train.ramp, tuple(self.train.skip.items())
        if ramp is None:
            return BatchSchedule(batch, skips=skips)
        if ramp.steps:
            return BatchSchedule(batch, at=tuple(ramp.steps.items()), skips=skips)
        return BatchSchedule(batch, ramp.start or 0, ramp.increment or 0, ramp.samples or 0, skips=skips)


def _with_steps(options: dict[Any, Any]) -> dict[Any, Any]:
    """The options of a task, or a question, whose share and weight may be mappings from steps."""
    by_step = {name: table for name in ("share", "weight") if isinstance(table := options.get(name), dict)}
    return options | {name: _steps(table) for name, table in by_step.items()}


def _steps(table: dict[Any, Any]) -> dict[Any, Any]:
    """Steps as numbers; `weight` may have a table of them for each loss."""
    return {_step(key): _steps(value) if isinstance(value, dict) else value for key, value in table.items()}


def _step(key: Any) -> Any:
    return int(key) if isinstance(key, str) and re.fullmatch(r"[0-9]{1,4300}", key) else key
