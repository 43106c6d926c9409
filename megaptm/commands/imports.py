"""`megaptm import`: create a run that starts from a model of another library."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.commands.family_group import FamilyGroup
from megaptm.commands.next_commands import print_next_commands
from megaptm.commands.options import overrides_argument
from megaptm.commands.output import echo


@click.group("import", cls=FamilyGroup)
def import_group() -> None:
    """Create a run from a model of another library.

    \b
      megaptm import hf exported/gpt2-tiny runs/again
      megaptm import elmo exported/elmo-tiny runs/elmo-again
    """


@import_group.command("hf")
@click.argument("source")
@click.argument("run", type=click.Path(path_type=Path))
@overrides_argument
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Folder of the tokenizer.  [default: that of SOURCE, else that of the corpus]",
)
def import_hugging_face_command(source: str, run: Path, overrides: tuple[str, ...], tokenizer: Path | None) -> None:
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
    imported = import_run(source, run, overrides, tokenizer=tokenizer)
    config = imported.config
    if heads := [name for name in imported.newly_initialized if name not in imported.decoders]:
        echo(f"{source} has no {', '.join(heads)}: initialized from train.seed={config.train.seed}")
    if imported.decoders:
        echo(
            f"{source} has no {', '.join(imported.decoders)}: transformers has no mask decoder, but megaptm's "
            f"{config.model.family} has one. It is initialized anew, so logits of masked tokens differ from "
            "transformers"
        )
    if imported.unused:
        names = ", ".join(imported.unused[:4]) + (
            f" and {len(imported.unused) - 4} more" if len(imported.unused) > 4 else ""
        )
        echo(f"{source} has weights that no objective here trains: {names}; an export writes them unchanged")
    if imported.differing_dropouts:
        rates = " and ".join(imported.differing_dropouts)
        echo(f"{source} was trained with {rates}: here one rate applies to all, model.dropout={config.model.dropout}")
    if imported.other_ids:
        until_then = "" if (run / "tokenizer").exists() else "; until there is one, they are those of the paper"
        echo(f"{source} has {', '.join(imported.other_ids)}: a run takes special ids from its tokenizer{until_then}")
    if imported.contradicted_text is not None:
        echo(
            f"warning: transformers encodes {imported.contradicted_text!r} otherwise than tokenizer.json, because "
            "tokenizer_config.json contradicts it, for example by do_lower_case. megaptm follows tokenizer.json: "
            "correct the wrong file, and import again"
        )
    spec = resolve_model(config)
    size = f"{config.model.family}/{config.model.size}, {count_parameters(spec):,} parameters"
    echo(f"{source} is step 0 of {click.format_filename(run)} ({size})")
    print_next_commands(config, run)
