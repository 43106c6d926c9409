"""Choice of the engine and its input by the config."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from megaptm.config import Config, resolve_distillation
from megaptm.errors import UserError
from megaptm.families.words import WordSpec
from megaptm.objectives import weights_at
from megaptm.objectives.pairs import GloVe
from megaptm.objectives.windows import WordWindows
from megaptm.run.corpora import RunCorpora
from megaptm.run.rank import RankEnvironment
from megaptm.spec import ModelSpec
from megaptm.train.batch_source import BatchSource, StepSource
from megaptm.train.pair_source import PairSource
from megaptm.train.training_engine import TrainingEngine

if TYPE_CHECKING:
    from torch import Tensor

    from megaptm.checkpoint.tensors import TensorReader
    from megaptm.parallel.initial import InitialFrom
    from megaptm.run.other_run import OtherRun
    from megaptm.words.pair_engine import PairEngine


def build_engine(
    config: Config, spec: ModelSpec | WordSpec, corpora: RunCorpora, place: RankEnvironment, *, timeout_minutes: float
) -> TrainingEngine:
    """Build an engine without weights; a checkpoint or `fill` sets them. Sampling values of a large model takes
    minutes."""
    if isinstance(spec, WordSpec):
        if spec.family.network:
            from megaptm.words.network_engine import NetworkEngine

            return NetworkEngine(spec, config, corpora, timeout_minutes=timeout_minutes)
        try:
            return _word_engine(config, spec, corpora, timeout_minutes)
        except ModuleNotFoundError as error:
            if error.name != "numba":
                raise
            raise UserError(f"{spec.name} needs numba: install it with `pip install 'megaptm[words]'`.") from None
    from megaptm.parallel.engine import Engine

    return Engine(
        spec,
        config.layout,
        config.optimizer,
        losses=weights_at(config.built_objective, 0),
        seed=config.train.seed,
        precision=config.train.precision,
        communication=config.communication,
        timeout_minutes=timeout_minutes,
        marks=config.batch_spec.marks,
        attention_kernel=config.train.attention_kernel,
        initial_by_name=_vectors(config, corpora),
        filled=False,
        distillation=None if config.distill is None else resolve_distillation(config),
        teacher=_teacher(config, place),
        initial_from=_initial_from(config, place),
    )


def _teacher(config: Config, place: RankEnvironment) -> TensorReader | None:
    if config.distill is None:
        return None
    from megaptm.run.teacher import needs_weights, teacher_run

    return verified_reader(teacher_run(config), place) if needs_weights(config) else None


def _initial_from(config: Config, place: RankEnvironment) -> Callable[[], InitialFrom] | None:
    """Return a function that opens the weights of another run, if this run starts from them."""
    if config.train.init_from is None:
        return None
    from megaptm.parallel.initial import weights_of
    from megaptm.run.initial import initial_run

    initial = initial_run(config)
    return None if initial is None else lambda: weights_of(verified_reader(initial, place))


def verified_reader(run: OtherRun, place: RankEnvironment) -> TensorReader:
    """Return the weights of another run. All ranks call this; each verifies its share of the files, and damage is
    raised on all."""
    from megaptm.checkpoint.files import DamagedError
    from megaptm.checkpoint.store import Store
    from megaptm.parallel.background import together

    def verified() -> TensorReader:
        try:
            checkpoint = Store(run.folder).load(run.chosen)
            checkpoint.verify(part=place.rank, parts=place.world)
        except DamagedError as error:  # unlike in the run's own store, there is no older checkpoint to use
            raise UserError(
                f"{run.key}: {error}; copy that file again, or let {run.step_key} name another checkpoint."
            ) from None
        return checkpoint.reader

    return together(verified)


def _vectors(config: Config, corpora: RunCorpora) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the function that sets the initial token table, if words start from vectors of a file."""
    if (path := config.model.word_vectors) is None:
        return {}
    from megaptm.words.text_file import with_vectors

    names = [corpora.tokenizer.name(id_) for id_ in range(corpora.tokenizer.vocabulary)]
    return {"embed.token.weight": partial(with_vectors, path=path, names=names)}


def build_source(config: Config, engine: TrainingEngine, corpora: RunCorpora) -> StepSource:
    """Build the input of an engine."""
    if config.built_objective.unit == "pairs":
        return PairSource(config, corpora, cast("PairEngine", engine))
    return BatchSource(config, engine.ranks, corpora)


def _word_engine(config: Config, spec: WordSpec, corpora: RunCorpora, timeout_minutes: float) -> TrainingEngine:
    from megaptm.words.engine import WordEngine
    from megaptm.words.pair_engine import PairEngine

    task = config.built_objective
    if isinstance(task, GloVe):
        return PairEngine(spec, config, corpora, timeout_minutes=timeout_minutes, run=Path(config.run))
    assert isinstance(task, WordWindows)
    return WordEngine(
        spec,
        config.layout,
        task,
        seed=config.train.seed,
        special=corpora.tokenizer.special.specials,
        names=[corpora.tokenizer.name(id_) for id_ in range(spec.vocabulary)] if spec.size.buckets else (),
        count_words=lambda ranks: corpora.word_counts(spec.vocabulary, ranks.rank, ranks.ranks, ranks.all_reduce),
        timeout_minutes=timeout_minutes,
    )
