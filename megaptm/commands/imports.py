"""`megaptm import`: a run that begins from a model made elsewhere."""

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
    """Begin a run from a model of another library.

    \b
      megaptm import hf exported/gpt2-tiny runs/again
      megaptm import elmo exported/elmo-tiny runs/elmo-again
    """


@imports.command("elmo")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("run", type=click.Path(path_type=Path))
@overrides_argument
def elmo(folder: Path, run: Path, overrides: tuple[str, ...]) -> None:
    """Make the run folder RUN, whose step 0 is the ELMo in FOLDER, as the released code names it.

    FOLDER has options.json, weights.hdf5 (or .safetensors) and vocabulary.txt, whose names may begin with the model's;
    softmax.safetensors too where it was exported here: released models have none, and it begins afresh. Text for it is
    cut at spaces, or as the tokenizer.json that lies there cuts it.

    \b
      megaptm import elmo released/elmo-original runs/elmo
      megaptm import elmo exported/elmo-tiny runs/again data.mix='{corpora/tiny-words-1024: 1}'
    """
    from megaptm.config import resolve_model
    from megaptm.hub.elmo_import import import_elmo
    from megaptm.plan.count import count_parameters

    config, fresh = import_elmo(folder, run, overrides)
    if fresh:
        echo(f"{folder} came without {', '.join(fresh)}: begun afresh, from train.seed={config.train.seed}")
    size = f"{config.model.family}/{config.model.size}, {count_parameters(resolve_model(config)):,} parameters"
    echo(f"{folder} is step 0 of {click.format_filename(run)} ({size})")
    _say_next(config, run)


@imports.command("hf")
@click.argument("source")
@click.argument("run", type=click.Path(path_type=Path))
@overrides_argument
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Folder of the tokenizer, if SOURCE has none or another one; absent, and not in SOURCE: that of the corpus.",
)
def hugging_face(source: str, run: Path, overrides: tuple[str, ...], tokenizer: Path | None) -> None:
    """Make the run folder RUN, whose step 0 is the model in SOURCE: a folder, or a name on the hub.

    Models of the families here that transformers has, saved as safetensors. A head that a model came without begins
    afresh, and the objective is one without it, if the family has such: masked-lm for a BertForMaskedLM. Any key of the
    config can be set, until the first checkpoint also by `megaptm train`; model.family=spanbert says which it is where
    several are of one type there. No code of the model's own is run.

    \b
      megaptm import hf exported/gpt2-tiny runs/again data.mix='{corpora/books: 1}'
      megaptm train runs/again train.steps=500

    \b
    Text for it has to be read by its own tokenizer:
      megaptm import hf openai-community/gpt2 runs/gpt2
      megaptm corpus build 'books/**/*.txt' out=runs/gpt2/corpus tokenizer=runs/gpt2/tokenizer
      megaptm evaluate runs/gpt2
    """
    from megaptm.report.terminal import TimedLog

    tell = TimedLog(enabled=sys.stderr.isatty(), stream=sys.stderr)  # for people, who wait
    tell("loading PyTorch and transformers")
    from megaptm.config import resolve_model
    from megaptm.hub.import_run import import_run
    from megaptm.plan.count import count_parameters

    tell(f"reading {source}")
    done = import_run(source, run, overrides, tokenizer=tokenizer)
    config = done.config
    if heads := [name for name in done.fresh if name not in done.decoders]:
        echo(f"{source} came without {', '.join(heads)}: begun afresh, from train.seed={config.train.seed}")
    if done.decoders:
        echo(
            f"{source} came without {', '.join(done.decoders)}: transformers has no mask decoder, and megaptm's "
            f"{config.model.family} has one. It begins afresh: logits of masked tokens are not those of transformers"
        )
    if done.unused:
        names = ", ".join(done.unused[:4]) + (f" and {len(done.unused) - 4} more" if len(done.unused) > 4 else "")
        echo(f"{source} has weights that no objective here trains: {names}; an export writes them as they are")
    if done.otherwise:
        said = " and ".join(done.otherwise)
        echo(f"{source} was trained with {said}: here one rate is for all, model.dropout={config.model.dropout}")
    spec = resolve_model(config)
    size = f"{config.model.family}/{config.model.size}, {count_parameters(spec):,} parameters"
    echo(f"{source} is step 0 of {click.format_filename(run)} ({size})")
    _say_next(config, run)


def _say_next(config: Config, run: Path) -> None:
    """What is typed to train it."""
    from megaptm.run.build_command import build_words
    from megaptm.shell import command_line, typed_path

    folder = typed_path(run.absolute())
    lines = [["train", folder]]
    tokenizer = f"{folder}/tokenizer" if (run / "tokenizer").exists() else "FOLDER_OF_ITS_TOKENIZER"
    if (place := str(run.absolute() / "corpus")) in config.data.mix:  # nobody named another: it is yet to be built
        lines.insert(0, build_words(place, config, text=None, out=f"{folder}/corpus", tokenizer=tokenizer))
    echo("\n".join(["next:", *(f"  {command_line(line)}" for line in lines)]))
