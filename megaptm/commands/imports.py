"""`megaptm import`: a run that starts from a model of another library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megaptm.commands.options import overrides_argument
from megaptm.commands.output import echo

if TYPE_CHECKING:
    from megaptm.config import Config


@click.group("import")
def imports() -> None:
    """Create a run from a model of another library.

    \b
      megaptm import hf exported/gpt2-tiny runs/again
      megaptm import elmo exported/elmo-tiny runs/elmo-again
    """


@imports.command("elmo")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("run", type=click.Path(path_type=Path))
@overrides_argument
def elmo(folder: Path, run: Path, overrides: tuple[str, ...]) -> None:
    """Create the run RUN from the ELMo in FOLDER, which has the format of the released code.

    FOLDER holds options.json, weights.hdf5 (or .safetensors) and vocabulary.txt; the file names may start with the name
    of the model. An export of megaptm also holds softmax.safetensors; released models lack it, and it is initialized
    anew. Text is split at spaces, or by a tokenizer.json in FOLDER.

    \b
      megaptm import elmo released/elmo-original runs/elmo
      megaptm import elmo exported/elmo-tiny runs/again data.mix='{corpora/tiny-words-1024: 1}'
    """
    from megaptm.config import resolve_model
    from megaptm.hub.elmo_import import import_elmo
    from megaptm.plan.count import count_parameters

    config, fresh = import_elmo(folder, run, overrides)
    if fresh:
        echo(f"{folder} has no {', '.join(fresh)}: initialized from train.seed={config.train.seed}")
    size = f"{config.model.family}/{config.model.size}, {count_parameters(resolve_model(config)):,} parameters"
    echo(f"{folder} is step 0 of {click.format_filename(run)} ({size})")
    _print_next_commands(config, run)


@imports.command("hf")
@click.argument("source")
@click.argument("run", type=click.Path(path_type=Path))
@overrides_argument
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Folder of the tokenizer.  [default: that of SOURCE, else that of the corpus]",
)
def hugging_face(source: str, run: Path, overrides: tuple[str, ...], tokenizer: Path | None) -> None:
    """Create the run RUN from a model of `transformers`. SOURCE is a folder, or a name on the Hugging Face Hub.

    The model must be saved as safetensors and belong to a family that both libraries have. A head that the model lacks
    is initialized anew, and the objective does not use it if possible: masked-lm for a BertForMaskedLM. KEY=VALUE
    changes any key of the config; until the first checkpoint, `megaptm train` can still change the model.
    model.family=spanbert selects the family if several have one type in transformers. Code of the model is never run.

    \b
      megaptm import hf exported/gpt2-tiny runs/again data.mix='{corpora/books: 1}'
      megaptm train runs/again train.steps=500

    \b
    A corpus for the model must be built with its tokenizer:
      megaptm import hf openai-community/gpt2 runs/gpt2
      megaptm corpus build 'books/**/*.txt' out=runs/gpt2/corpus tokenizer=runs/gpt2/tokenizer
      megaptm evaluate runs/gpt2
    """
    from megaptm.report.terminal import TimedLog

    tell = TimedLog(enabled=sys.stderr.isatty(), stream=sys.stderr)
    tell("loading PyTorch and transformers")
    from megaptm.config import resolve_model
    from megaptm.hub.import_run import import_run
    from megaptm.plan.count import count_parameters

    tell(f"reading {source}")
    done = import_run(source, run, overrides, tokenizer=tokenizer)
    config = done.config
    if heads := [name for name in done.fresh if name not in done.decoders]:
        echo(f"{source} has no {', '.join(heads)}: initialized from train.seed={config.train.seed}")
    if done.decoders:
        echo(
            f"{source} has no {', '.join(done.decoders)}: transformers has no mask decoder, but megaptm's "
            f"{config.model.family} has one. It is initialized anew, so logits of masked tokens differ from "
            "transformers"
        )
    if done.unused:
        names = ", ".join(done.unused[:4]) + (f" and {len(done.unused) - 4} more" if len(done.unused) > 4 else "")
        echo(f"{source} has weights that no objective here trains: {names}; an export writes them unchanged")
    if done.differing_rates:
        rates = " and ".join(done.differing_rates)
        echo(f"{source} was trained with {rates}: here one rate applies to all, model.dropout={config.model.dropout}")
    spec = resolve_model(config)
    size = f"{config.model.family}/{config.model.size}, {count_parameters(spec):,} parameters"
    echo(f"{source} is step 0 of {click.format_filename(run)} ({size})")
    _print_next_commands(config, run)


def _print_next_commands(config: Config, run: Path) -> None:
    """Print the commands that train the imported model."""
    from megaptm.run.build_command import build_words
    from megaptm.shell import command_line, typed_path

    folder = typed_path(run.absolute())
    lines = [["train", folder]]
    tokenizer = f"{folder}/tokenizer" if (run / "tokenizer").exists() else "FOLDER_OF_ITS_TOKENIZER"
    if (corpus := str(run.absolute() / "corpus")) in config.data.mix:  # the default, which must still be built
        lines.insert(0, build_words(corpus, config, text=None, out=f"{folder}/corpus", tokenizer=tokenizer))
    echo("\n".join(["next:", *(f"  {command_line(line)}" for line in lines)]))
