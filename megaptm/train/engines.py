"""Which engine trains what a config names, and what it reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from megaptm.config import Config, distillation_of
from megaptm.errors import UserError
from megaptm.families.words import WordSpec
from megaptm.objectives import weights_at
from megaptm.objectives.pairs import GloVe
from megaptm.objectives.windows import WordWindows
from megaptm.run.corpora import RunCorpora
from megaptm.run.teacher import open_teacher
from megaptm.spec import ModelSpec
from megaptm.train.batch_source import BatchSource, StepSource
from megaptm.train.pair_source import PairSource
from megaptm.train.training_engine import TrainingEngine

if TYPE_CHECKING:
    from torch import Tensor

    from megaptm.words.pair_engine import PairEngine


def build_engine(
    config: Config, spec: ModelSpec | WordSpec, corpora: RunCorpora, *, timeout_minutes: float
) -> TrainingEngine:
    """An engine without weights: they come with the checkpoint, or where there is none by `fill`. To draw numbers for a
    large model takes minutes."""
    if isinstance(spec, WordSpec):
        if spec.family.network:
            from megaptm.words.network_engine import NetworkEngine

            return NetworkEngine(spec, config, corpora, timeout_minutes=timeout_minutes)
        try:
            return _word_engine(config, spec, corpora, timeout_minutes)
        except ModuleNotFoundError as error:
            if error.name != "numba":
                raise
            raise UserError(f"{spec.name} needs numba: install it with `pip install megaptm[words]`.") from None
    from megaptm.parallel.engine import Engine

    distillation = None if config.distill is None else distillation_of(config)
    return Engine(
        spec,
        config.layout,
        config.optimizer,
        losses=weights_at(config.built_objective, 0),
        seed=config.train.seed,
        precision=config.train.precision,
        communication=config.communication,
        timeout_minutes=timeout_minutes,
        marks=config.built_objective.batch(config.data.sequence, config.data.document_mask).marks,
        attention_kernel=config.train.attention_kernel,
        initial_by_name=_vectors(config, corpora),
        filled=False,
        distillation=distillation,
        teacher=None if distillation is None else open_teacher(config),
    )


def _vectors(config: Config, corpora: RunCorpora) -> dict[str, Callable[[Tensor], Tensor]]:
    """What makes the first table of tokens where words begin with vectors of a file."""
    if (path := config.model.vectors) is None:
        return {}
    from megaptm.words.text_file import with_vectors

    names = [corpora.tokenizer.name(id_) for id_ in range(corpora.tokenizer.vocabulary)]
    return {"embed.token.weight": partial(with_vectors, path=path, names=names)}


def build_source(config: Config, engine: TrainingEngine, corpora: RunCorpora) -> StepSource:
    """What the engine is given to read."""
    if config.built_objective.unit == "pairs":
        return PairSource(config, corpora, cast("PairEngine", engine))
    return BatchSource(config, engine.ranks, corpora)


def _word_engine(config: Config, spec: WordSpec, corpora: RunCorpora, timeout_minutes: float) -> TrainingEngine:
    from megaptm.words.engine import WordEngine
    from megaptm.words.pair_engine import PairEngine

    task = config.built_objective
    if isinstance(task, GloVe):
        return PairEngine(spec, config, corpora, timeout_minutes=timeout_minutes)
    assert isinstance(task, WordWindows)
    return WordEngine(
        spec,
        config.layout,
        task,
        seed=config.train.seed,
        special=corpora.tokenizer.special.specials,
        names=[corpora.tokenizer.name(id_) for id_ in range(spec.vocabulary)] if spec.size.buckets else (),
        count_words=lambda ranks: corpora.word_counts(spec.vocabulary, ranks.rank, ranks.ranks, ranks.total),
        timeout_minutes=timeout_minutes,
    )
