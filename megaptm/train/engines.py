"""Choice of the training engine and its input from the config."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from megaptm.config import Config, resolve_model
from megaptm.config.sections.extensions import used_sections
from megaptm.errors import UserError
from megaptm.families import find_family
from megaptm.objectives import loss_weights_at
from megaptm.run.corpora import RunCorpora
from megaptm.run.rank import RankEnvironment
from megaptm.spec import LayerlessFamily, LayerlessSpec, ModelSpec
from megaptm.train.batch_source import BatchSource, StepSource
from megaptm.train.training_engine import TrainingEngine

TOKEN_TABLE = "embed.token.weight"

if TYPE_CHECKING:
    from megaptm.checkpoint.tensors import TensorReader
    from megaptm.parallel.initial import Initializer
    from megaptm.run.other_run import OtherRun


def build_training_engine(
    config: Config,
    spec: ModelSpec | LayerlessSpec,
    corpora: RunCorpora,
    rank_env: RankEnvironment,
    *,
    timeout_minutes: float,
    log: Callable[[str], None],
) -> TrainingEngine:
    """Build the training engine of a config without weights; a checkpoint or `init_weights` sets them. Sampling values
    of a large model takes minutes. `log` receives a line for each notable property of the engine."""
    if isinstance(spec, LayerlessSpec):
        engine: TrainingEngine = spec.family.build_engine(config, spec, corpora, timeout_minutes=timeout_minutes)
        return engine
    from megaptm.parallel.attention_logits import AttentionLogitsHook
    from megaptm.parallel.build import build_engine as build_parallel_engine
    from megaptm.parallel.compiled import should_compile
    from megaptm.parallel.norms import NormsHook

    if compiles := should_compile(config.train.compile):
        log("layers are compiled in the first step, which takes longer")
    hooks = [section.build_hook(config, rank_env) for section in used_sections(config)]
    if config.train.norms_every is not None:
        hooks.append(NormsHook(config.train.norms_every))
    if config.train.attention_logits_every is not None:
        hooks.append(AttentionLogitsHook(config.train.attention_logits_every))
    return build_parallel_engine(
        spec,
        config.layout,
        config.optimizer,
        losses=loss_weights_at(config.built_objective, 0),
        seed=config.train.seed,
        hooks=[hook for hook in hooks if hook is not None],
        open_initializer=_open_initializer(config, corpora, rank_env),
        precision=config.train.precision,
        loss_scale=config.train.loss_scale,
        spikes=config.train.spikes,
        communication=config.communication,
        timeout_minutes=timeout_minutes,
        global_tokens=config.batch_spec.has_global_tokens,
        attention_kernel=config.train.attention_kernel,
        compiles=compiles,
        log=log,
    )


def _open_initializer(
    config: Config, corpora: RunCorpora, rank_env: RankEnvironment
) -> Callable[[], Initializer] | None:
    """Return a function that opens the weights from which this run starts, if any: word vectors or another run."""
    from megaptm.parallel.initial import checkpoint_initializer
    from megaptm.run.initial import initial_run

    if config.model.word_vectors is not None:
        return partial(_vector_initializer, config.model.word_vectors, corpora)
    if config.train.init_from is None or (initial := initial_run(config)) is None:
        return None
    return lambda: checkpoint_initializer(open_verified_weights(initial, rank_env), resolve_model(config))


def open_verified_weights(run: OtherRun, rank_env: RankEnvironment) -> TensorReader:
    """Return a reader of another run's weights, which all ranks have verified. Each verifies its share of the files,
    and damage is raised on all."""
    from megaptm.checkpoint.files import DamagedError
    from megaptm.checkpoint.store import CheckpointStore
    from megaptm.parallel.background import run_on_all_ranks

    def open_verified_checkpoint() -> TensorReader:
        try:
            checkpoint = CheckpointStore(run.folder).load(run.selected_step)
            checkpoint.verify(part=rank_env.rank, parts=rank_env.world)
        except DamagedError as error:  # unlike in the run's own store, there is no older checkpoint to use
            raise UserError(
                f"{run.key}: {error}; copy that file again, or let {run.step_key} name another checkpoint."
            ) from None
        return checkpoint.reader

    return run_on_all_ranks(open_verified_checkpoint)


def _vector_initializer(path: str, corpora: RunCorpora) -> Initializer:
    """Return an initializer that sets the token table from word vectors of a file."""
    from megaptm.run.word_vector_file import with_word_vectors

    names = [corpora.tokenizer.name(id_) for id_ in range(corpora.tokenizer.vocabulary)]
    return lambda name, default: with_word_vectors(default, path=path, names=names) if name == TOKEN_TABLE else default


def build_step_source(config: Config, engine: TrainingEngine, corpora: RunCorpora) -> StepSource:
    """Build the batch source of a training engine."""
    family = find_family(config.model.family)
    source = family.build_source(config, engine, corpora) if isinstance(family, LayerlessFamily) else None
    return BatchSource(config, engine.ranks, corpora) if source is None else source
