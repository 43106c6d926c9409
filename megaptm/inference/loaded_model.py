"""A trained model, whole and on one device: for whoever uses it without training it. No megatron-core."""

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
"""A file of an image, or what is in it."""
TEMPLATES = ("a photo of a {}.",)
"""What is said of a class where nobody knows more of its images (CLIP, arXiv:2103.00020, 3.1.4)."""


@dataclass(frozen=True)
class LoadedModel:
    """A trained model with its tokenizer. `megaptm.load` opens one."""

    folder: Path
    """Of the run, or the exported model."""
    config: Config
    """That of the run; of an exported model, the one that importing it would begin a run with."""
    step: int
    """Of the run; 0 of an exported model."""
    model: Model
    """In evaluation mode, without gradients."""
    tokenizer: Tokenizer
    tokenizer_folder: Path
    fresh: tuple[str, ...] = ()
    """Heads that an exported model came without: they have learned nothing."""

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec

    @property
    def is_run(self) -> bool:
        """Whether the folder is a run's, which knows its corpora; not an exported model's."""
        return (self.folder / CONFIG).is_file()

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """What it can be asked with. An exported encoder-decoder may have learned to answer texts: its folder does
        not tell."""
        shown, speaks = self.config.built_objective.prompts, self.spec.family.last_block.cross is not None
        return (*dict.fromkeys((*shown, "text")),) if speaks and not self.is_run else shown

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def generate(
        self, prompt: str, *, tokens: int = 100, temperature: float = 0.8, top_k: int = 50, seed: int = 0
    ) -> str:
        """How a decoder (GPT) goes on after a prompt, until a document's end or for so many tokens.

        `temperature` 0 takes the likeliest token each time; else one is drawn from the `top_k` likeliest (0: all).
        """
        from megaptm.inference.generate import Sampling, continue_text

        sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed)
        return "".join(continue_text(self, prompt, tokens=tokens, sampling=sampling))

    def fill(self, prompt: str, *, tokens: int = 100, temperature: float = 0.8, top_k: int = 50, seed: int = 0) -> str:
        """A prompt with an encoder-decoder's words in its holes, `<extra_id_0>`, `<extra_id_1>` ... (T5); or its answer
        to a prompt with masks (BART), or to one as it is, where the objective has none of either."""
        from megaptm.inference.generate import Sampling, fill_holes

        sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed)
        return fill_holes(self, prompt, tokens=tokens, sampling=sampling)

    def answer(self, prompt: str, *, tokens: int = 100, beams: int = 4, length_penalty: float = 0.6) -> str:
        """The likeliest answer of an encoder-decoder to a text, such as its translation (Transformer), by beam search
        (`inference.beam.Beam`)."""
        from megaptm.inference.beam import Beam, answer

        return answer(self, prompt, tokens=tokens, beam=Beam(width=beams, length_penalty=length_penalty))

    def guess(self, prompt: str, *, guesses: int = 5) -> list[list[Guess]]:
        """For each `[MASK]` in a prompt, an encoder's (BERT) likeliest tokens with their chances, likeliest first."""
        from megaptm.inference.generate import guess_masks

        return guess_masks(self, prompt, guesses=guesses)

    def encode(self, texts: str | Sequence[str], *, pool: str = "mean", batch: int = 16) -> Tensor:
        """A vector of each text, float32 [texts, width] on the CPU, from the last layer of an encoder, or a decoder.

        `pool`: the `mean` over a text's tokens, its `first` or its `last`; or `none`: [texts, tokens, width], with
        zeros behind shorter texts. Special tokens stand where training had them. `batch` texts are read at once.
        Of a model of both directions (ELMo) it is the mean of its layers, a vector for each word and none for marks.
        Of one of images and texts (CLIP) it is what is compared with images, of length 1, whatever `pool` says.
        """
        from megaptm.inference.encode import encode

        return encode(self, texts, pool=pool, batch=batch)

    def encode_images(self, images: Image | Sequence[Image], *, batch: int = 64) -> Tensor:
        """A vector of each image, a file or its bytes, float32 [images, width] on the CPU: of a model of images and
        texts (CLIP) what is compared with texts, of length 1. `self.encode(texts) @ self.encode_images(images).T` says
        which belong together. Images are cropped as held-out ones are."""
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
        """Which of some names each image has, by the mean of the vectors of what `templates` make of a name (CLIP,
        arXiv:2103.00020, 3.1.4): of images, or of the first `rows` held-out ones of a corpus with labels, whose names
        are those of the labels."""
        from megaptm.inference.image_text import zero_shot

        return zero_shot(self, names, images, corpus=corpus, templates=templates, rows=rows)

    def layers(self, texts: str | Sequence[str], *, batch: int = 16) -> list[Tensor]:
        """Of each text what every layer of a model of both directions (ELMo) says of its words, float32 [layers + 1,
        words, 2 x width] on the CPU; first come words by their characters. `megaptm.models.every_layer.ScalarMix`
        weighs them, which is learned with what reads it."""
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
        """How well it predicts held-out rows of the run's corpora, or of others: the options of `megaptm evaluate`
        (`EvaluationOptions`). Unlike the command it writes nothing to the run's folder."""
        from megaptm.inference.evaluate import evaluate

        options = EvaluationOptions(
            rows=rows, sequence=sequence, memory=memory, farthest=farthest, same_length=same_length
        )

        if corpora is not None and not isinstance(corpora, Mapping):
            corpora = {str(corpora): 1.0}
        return evaluate(self, options, corpora=None if corpora is None else dict(corpora))


def load_model(folder: str | Path, *, step: int | None = None, device: str | torch.device | None = None) -> LoadedModel:
    """The model in the folder of a run, or in one of Hugging Face's format, as `megaptm export hf` writes it."""
    folder = Path(folder)
    return open_run(folder, step=step, device=device) if is_run(folder, step) else open_exported(folder, device=device)


def open_run(run: str | Path, *, step: int | None = None, device: str | torch.device | None = None) -> LoadedModel:
    """The model as saved at `step` (absent: last), in float32, on `device` (absent: the GPU if there is one)."""
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
    """A model of Hugging Face's format, in a folder, in float32."""
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
    """The model with these weights, which are read from `where`, ready to be asked."""
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
