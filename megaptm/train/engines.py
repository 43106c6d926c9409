"""Which engine trains what a config names."""

from __future__ import annotations

from functools import partial

from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.families.words import WordSpec
from megaptm.objectives import weights_at
from megaptm.objectives.windows import WordWindows
from megaptm.run.corpora import RunCorpora
from megaptm.spec import ModelSpec
from megaptm.train.training_engine import TrainingEngine


def build_engine(
    config: Config, spec: ModelSpec | WordSpec, corpora: RunCorpora, *, timeout_minutes: float
) -> TrainingEngine:
    """An engine without weights: they come with the checkpoint, or where there is none by `fill`. To draw numbers for a
    large model takes minutes."""
    if isinstance(spec, WordSpec):
        try:
            from megaptm.words.engine import WordEngine
        except ModuleNotFoundError as error:
            if error.name != "numba":
                raise
            raise UserError(f"{spec.name} needs numba: install it with `pip install megaptm[words]`.") from None
        task = config.built_objective
        assert isinstance(task, WordWindows)
        return WordEngine(
            spec,
            config.layout,
            task,
            seed=config.train.seed,
            special=corpora.tokenizer.special.specials,
            names=[corpora.tokenizer.name(id_) for id_ in range(spec.vocabulary)] if spec.size.buckets else (),
            count_words=partial(corpora.word_counts, spec.vocabulary),
            timeout_minutes=timeout_minutes,
        )
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
        marks=config.built_objective.batch(config.data.sequence, config.data.document_mask).marks,
        filled=False,
    )
