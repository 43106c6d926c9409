"""Trained model on one device, for use without training. No megatron-core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.inference.evaluation_options import EvaluationOptions
from megaptm.inference.folder import is_run
from megaptm.models import Model, build_model
from megaptm.objectives.objective import Prompt
from megaptm.run.checkpoint import open_checkpoint
from megaptm.run.folder import CONFIG
from megaptm.spec import ModelSpec
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers import load as load_tokenizer

if TYPE_CHECKING:
    from megaptm.inference.evaluate import Evaluation
    from megaptm.inference.generate import Guess
    from megaptm.inference.image_text import ZeroShot


Image = str | Path | bytes
"""Image file, or its content."""
TEMPLATES = ("a photo of a {}.",)
"""Default prompt template of a class (CLIP, arXiv:2103.00020, 3.1.4)."""


@dataclass(frozen=True)
class LoadedModel:
    """Trained model with its tokenizer. `megaptm.load` opens one."""

    folder: Path
    """Folder of the run, or of the exported model."""
    config: Config
    """Config of the run; for an exported model, the config of a run that imports it."""
    step: int
    """Step of the run; 0 for an exported model."""
    model: Model
    """In evaluation mode, without gradients."""
    tokenizer: Tokenizer
    tokenizer_folder: Path
    fresh: tuple[str, ...] = ()
    """Heads that an exported model does not have: they are untrained."""

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec

    @property
    def is_run(self) -> bool:
        """Whether the folder is a run, which knows its corpora, rather than an exported model."""
        return (self.folder / CONFIG).is_file()

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Kinds of prompts that the model accepts. An exported encoder-decoder may be trained for plain texts, which
        its folder does not tell."""
        shown, speaks = self.config.built_objective.prompts, self.spec.family.last_block.cross is not None
        return (*dict.fromkeys((*shown, "text")),) if speaks and not self.is_run else shown

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def generate(
        self, prompt: str, *, tokens: int = 100, temperature: float = 0.8, top_k: int = 50, seed: int = 0
    ) -> str:
        """Return the continuation of a prompt by a decoder (GPT), up to a document end or `tokens` tokens.

        With `temperature` 0 each token is the most likely one; otherwise it is sampled from the `top_k` most likely (0:
        all).
        """
        from megaptm.inference.generate import Sampling, continue_text

        sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed)
        return "".join(continue_text(self, prompt, tokens=tokens, sampling=sampling))

    def fill(self, prompt: str, *, tokens: int = 100, temperature: float = 0.8, top_k: int = 50, seed: int = 0) -> str:
        """Return the prompt with its holes `<extra_id_0>`, `<extra_id_1>` ... filled by an encoder-decoder (T5); or the
        output for a prompt with masks (BART), or without, if the objective has none."""
        from megaptm.inference.generate import Sampling, fill_holes

        sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed)
        return fill_holes(self, prompt, tokens=tokens, sampling=sampling)

    def answer(self, prompt: str, *, tokens: int = 100, beams: int = 4, length_penalty: float = 0.6) -> str:
        """Return the most likely output of an encoder-decoder for a text, such as its translation (Transformer), by
        beam search (`inference.beam.Beam`)."""
        from megaptm.inference.beam import Beam, answer

        return answer(self, prompt, tokens=tokens, beam=Beam(width=beams, length_penalty=length_penalty))

    def guess(self, prompt: str, *, guesses: int = 5) -> list[list[Guess]]:
        """Return the most likely tokens of an encoder (BERT) for each `[MASK]` in a prompt with their probabilities,
        most likely first."""
        from megaptm.inference.generate import guess_masks

        return guess_masks(self, prompt, guesses=guesses)

    def encode(self, texts: str | Sequence[str], *, pool: str = "mean", batch: int = 16) -> Tensor:
        """Return a vector of each text, float32 [texts, width] on the CPU, from the last layer of an encoder or
        decoder.

        `pool`: the `mean` over a text's tokens, the `first` or the `last` token; or `none`: [texts, tokens, width],
        padded with zeros. Special tokens are added as in training. `batch`: texts per forward pass.

        For a bidirectional language model (ELMo): the mean of its layers, with one vector per word and none for begin
        and end marks. For an image-text model (CLIP): the normalized vector in the joint space, for any `pool`.
        """
        from megaptm.inference.encode import encode

        return encode(self, texts, pool=pool, batch=batch)

    def encode_images(self, images: Image | Sequence[Image], *, batch: int = 64) -> Tensor:
        """Return a vector of each image (a file or its bytes), float32 [images, width] on the CPU, for an image-text
        model (CLIP): normalized, in the joint space. `self.encode(texts) @ self.encode_images(images).T` gives
        similarities. Images are cropped as in validation."""
        from megaptm.inference.image_text import image_vectors

        return image_vectors(self, [images] if isinstance(images, str | Path | bytes) else images, batch=batch)

    def zero_shot(
        self,
        names: str | Sequence[str] | None = None,
        images: Image | Sequence[Image] | None = None,
        *,
        corpus: str | Path | None = None,
        templates: Sequence[str] = TEMPLATES,
        rows: int | None = None,
    ) -> ZeroShot:
        """Classify images by names, with the mean of the text vectors of `templates` for each name (CLIP,
        arXiv:2103.00020, 3.1.4). Either `images`, or the first `rows` held-out images of a labeled corpus, whose label
        names are the default `names`."""
        from megaptm.inference.image_text import zero_shot

        return zero_shot(self, names, images, corpus=corpus, templates=templates, rows=rows)

    def layers(self, texts: str | Sequence[str], *, batch: int = 16) -> list[Tensor]:
        """Return the outputs of every layer of a bidirectional language model (ELMo) for the words of each text,
        float32 [layers + 1, words, 2 x width] on the CPU.

        The first layer holds character-based word embeddings. `megaptm.models.every_layer.ScalarMix` is a trainable
        weighted sum of layers.
        """
        from megaptm.inference.words_by_characters import layers_of_words

        return layers_of_words(self, [texts] if isinstance(texts, str) else texts, batch=batch)

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
        from megaptm.inference.evaluate import evaluate

        options = EvaluationOptions(
            rows=rows, sequence=sequence, memory=memory, farthest=farthest, same_length=same_length
        )

        if corpora is not None and not isinstance(corpora, Mapping):
            corpora = {str(corpora): 1.0}
        return evaluate(self, options, corpora=None if corpora is None else dict(corpora))


def load_model(folder: str | Path, *, step: int | None = None, device: str | torch.device | None = None) -> LoadedModel:
    """Load the model of a run folder, or of a folder in Hugging Face's format, as `megaptm export hf` writes it."""
    folder = Path(folder)
    return open_run(folder, step=step, device=device) if is_run(folder, step) else open_exported(folder, device=device)


def open_run(run: str | Path, *, step: int | None = None, device: str | torch.device | None = None) -> LoadedModel:
    """Load the model saved at `step` (None: last), in float32, on `device` (None: the GPU if there is one)."""
    checkpoint = open_checkpoint(run, step=step)
    return LoadedModel(
        folder=checkpoint.run,
        config=checkpoint.config,
        step=checkpoint.step,
        model=_filled(checkpoint.spec, checkpoint.weights(), device, checkpoint.checkpoint.folder, run),
        tokenizer=load_tokenizer(checkpoint.tokenizer),
        tokenizer_folder=checkpoint.tokenizer,
    )


def open_exported(folder: str | Path, *, device: str | torch.device | None = None) -> LoadedModel:
    """Load a model in Hugging Face's format, in float32."""
    from megaptm.hub.import_run import complete, first_config, read_model

    folder = Path(folder)
    imported, tokenizer = read_model(str(folder))
    if tokenizer is None:
        raise UserError(f"{folder} has no tokenizer.json: put the model's tokenizer beside it.")
    config = first_config(imported, folder)
    return LoadedModel(
        folder=folder,
        config=config,
        step=0,
        model=_filled(imported.spec, complete(imported, seed=config.train.seed), device, folder, folder),
        tokenizer=tokenizer,
        tokenizer_folder=folder,
        fresh=imported.fresh,
    )


def _filled(
    spec: ModelSpec, weights: Mapping[str, Tensor], device: str | torch.device | None, where: Path, run: str | Path
) -> Model:
    """Build the model with these weights, read from `where`, in evaluation mode."""
    with torch.device("meta"):
        model = build_model(spec)
    model.to_empty(device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = weights.get(name)
            if weight is None or weight.shape != parameter.shape:
                raise UserError(
                    f"{where} has no {name} of shape {tuple(parameter.shape)}: it is not of the model in "
                    f"{Path(run) / CONFIG}; put back the config that it was made with."
                )
            parameter.copy_(weight)
    return model.eval().requires_grad_(False)
