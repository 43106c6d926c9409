"""Trained model with its uses as methods: `megaptm.load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from megaptm.console import Console
from megaptm.errors import UserError
from megaptm.families import contributions
from megaptm.inference.beam import Beam, generate_by_beam
from megaptm.inference.encode import encode_texts
from megaptm.inference.evaluate import Evaluation, evaluate_model
from megaptm.inference.evaluation_options import EvaluationOptions
from megaptm.inference.folder import is_run_folder
from megaptm.inference.generate import Sampling, TokenPrediction, continue_text, fill_holes, predict_masks
from megaptm.inference.trained_model import TrainedModel, open_exported, open_run


class MissingMethodError(UserError, AttributeError):
    """Raised for a method that only loaded models of another kind have."""


class EvaluationResult(Protocol):
    """Interface of the result of an evaluation."""

    def to_json(self) -> dict[str, object]:
        """Return the result of an evaluation as JSON values."""
        ...

    def show(self, console: Console) -> None:
        """Print the result of an evaluation."""
        ...


@dataclass(frozen=True)
class LoadedModel(TrainedModel):
    """Trained model with its tokenizer and its uses. `megaptm.load` opens one.

    A family with more uses has a subclass, `LOADED_MODEL` in `inference.py` of its folder.
    """

    models: ClassVar[str] = ""
    """Models that the subclass is for, in messages: `models of images and texts (CLIP)`."""
    evaluate_options: ClassVar[tuple[str, ...]] = ()
    """Options of `megaptm evaluate` that the subclass uses, among the `OPTIONS` of families."""

    @classmethod
    def fits(cls, model: TrainedModel) -> bool:
        """Whether this subclass has the methods for a model."""
        return True

    def evaluate_further(
        self, corpora: dict[str, float], rows: int | None, options: Mapping[str, Any]
    ) -> list[EvaluationResult]:
        """Return the results of `megaptm evaluate` besides the loss, such as retrieval. `corpora`: empty for those of
        the run. `rows`: maximum number of samples. `options`: values of the options of families."""
        return []

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the loaded models that have this method."""
            if not name.startswith("_"):
                for kind in contributions("inference", "LOADED_MODEL"):
                    if name in vars(kind):
                        raise MissingMethodError(f"{self.spec.name} has no `{name}`, which is for {kind.models}.")
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")

    def generate(
        self, prompt: str, *, tokens: int = 100, temperature: float = 0.8, top_k: int = 50, seed: int = 0
    ) -> str:
        """Return the continuation of a prompt by a decoder (GPT), up to a document end or `tokens` tokens.

        With `temperature` 0 each token is the most likely one; otherwise it is sampled from the `top_k` most likely (0:
        all).
        """
        sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed)
        return "".join(continue_text(self, prompt, tokens=tokens, sampling=sampling))

    def fill(self, prompt: str, *, tokens: int = 100, temperature: float = 0.8, top_k: int = 50, seed: int = 0) -> str:
        """Return the prompt with its holes `<extra_id_0>`, `<extra_id_1>` ... filled by an encoder-decoder (T5); or the
        output for a prompt with masks (BART), or without, if the objective has none."""
        sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed)
        return fill_holes(self, prompt, tokens=tokens, sampling=sampling)

    def answer(self, prompt: str, *, tokens: int = 100, beams: int = 4, length_penalty: float = 0.6) -> str:
        """Return the most likely output of an encoder-decoder for a text, such as its translation (Transformer), by
        beam search (`inference.beam.Beam`)."""
        return generate_by_beam(self, prompt, tokens=tokens, beam=Beam(width=beams, length_penalty=length_penalty))

    def guess(self, prompt: str, *, guesses: int = 5) -> list[list[TokenPrediction]]:
        """Return the most likely tokens of an encoder (BERT) for each `[MASK]` in a prompt with their probabilities,
        most likely first."""
        return predict_masks(self, prompt, guesses=guesses)

    def encode(self, texts: str | Sequence[str], *, pool: str = "mean", batch: int = 16) -> Tensor:
        """Return a vector of each text, float32 [texts, width] on the CPU, from the last layer of an encoder or
        decoder.

        `pool`: the `mean` over a text's tokens, the `first` or the `last` token; or `none`: [texts, tokens, width],
        padded with zeros. Special tokens are added as in training. `batch`: texts per forward pass.
        """
        return encode_texts(self, texts, pool=pool, batch=batch)

    def evaluate(
        self,
        corpora: str | Path | Mapping[str, float] | None = None,
        *,
        rows: int | None = None,
        sequence: int | None = None,
        memory: int | None = None,
        farthest: int | None = None,
        same_length: bool = False,
    ) -> Evaluation:
        """Evaluate the model on held-out samples of the run's corpora, or of others, with the options of `megaptm
        evaluate` (`EvaluationOptions`). Unlike the command it writes nothing to the run folder."""
        options = EvaluationOptions(
            rows=rows, sequence=sequence, memory=memory, farthest=farthest, same_length=same_length
        )

        if corpora is not None and not isinstance(corpora, Mapping):
            corpora = {str(corpora): 1.0}
        return evaluate_model(self, options, corpora=None if corpora is None else dict(corpora))


def load_model(
    folder: str | Path, *, step: int | None = None, device: str | torch.device | None = None, ema: bool = False
) -> LoadedModel:
    """Load the model of a run folder, or of a folder in Hugging Face's format, as `megaptm export hf` writes it.

    `ema`: with the running means of the weights, only of a run.
    """
    folder = Path(folder)
    if is_run_folder(folder, step):
        opened = open_run(folder, step=step, device=device, ema=ema)
    elif ema:
        raise UserError(f"{folder} is an exported model, which has one set of weights: leave out --ema.")
    else:
        opened = open_exported(folder, device=device)
    # Families that are derived from others come later in the list, and are preferred.
    kinds = reversed([*contributions("inference", "LOADED_MODEL")])
    kind = next((kind for kind in kinds if kind.fits(opened)), LoadedModel)
    model: LoadedModel = kind(**vars(opened))
    return model
