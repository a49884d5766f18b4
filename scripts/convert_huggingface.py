"""Converts models from and to the formats of Hugging Face's libraries.

python scripts/convert_huggingface.py import gpt2 gpt2.ckpt       reads a model on the Hub or in a folder, writes a file
python scripts/convert_huggingface.py export runs/NAME folder     reads a checkpoint, writes a folder for transformers

Install the packages that this needs first: pip install -r requirements-hf.txt
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.mistakes import Mistake
from model.runs.terminal import exit_status, say
from scripts.parser import Parser


@exit_status("convert_huggingface.py")
def main(argv: list[str] | None = None) -> None:
    parser = Parser(prog="convert_huggingface.py", description=__doc__)
    commands = parser.add_subparsers(metavar="import | export", required=True)

    importer = commands.add_parser("import", help="model in GPT-2's format, or exported by this project -> checkpoint")
    importer.set_defaults(convert=import_model)
    add = importer.add_argument
    add("source", metavar="SOURCE", help="folder with config.json and model.safetensors, or name of a model on the Hub")
    add("output", type=Path, metavar="OUT.ckpt", help="checkpoint file to write; it must not exist yet")
    add(
        "--tokenizer",
        metavar="NAME",
        help="bytes, or a published encoding such as gpt2 (default: the tokenizer.json of the model)",
    )

    exporter = commands.add_parser("export", help="checkpoint -> folder for transformers")
    exporter.set_defaults(convert=export_model)
    add = exporter.add_argument
    add("checkpoint", type=Path, metavar="RUN", help="run folder, whose best checkpoint is read, or checkpoint file")
    add("output", type=Path, metavar="OUT_DIR", help="folder to write; it must not exist yet, or be empty")

    options = parser.parse_args(argv)
    options.convert(options)


def import_model(options: argparse.Namespace) -> None:
    """Writes a checkpoint that every script can read, and train.py with --model.init_from."""
    import torch

    from data.tokenizers import Tokenizer, published
    from model.checkpoint import WEIGHT_PREFIX, entries_of
    from model.exchange.huggingface import check_vocabulary, from_huggingface, local_folder, masks_documents
    from model.files import atomic_file
    from model.proof import NUM_TOKENS

    output = options.output
    if output.exists():
        raise Mistake(f"{output} already exists: name a new file")
    folder = local_folder(options.source)
    gpt = from_huggingface(folder)
    tokenizer = published(options.tokenizer) if options.tokenizer else Tokenizer.from_folder(folder)
    check_vocabulary(gpt, tokenizer)
    weights = {WEIGHT_PREFIX + name: weight for name, weight in gpt.state_dict().items()}
    tokens = torch.arange(min(gpt.config.vocab_size, NUM_TOKENS + 1))
    checkpoint = entries_of(gpt, weights, tokenizer, tokens, masks_documents(folder))
    with atomic_file(output) as file:
        torch.save(checkpoint | {"state_dict": weights, "global_step": 0}, file)
    say(f"{output}: {gpt.num_parameters():,} parameters, tokenizer {tokenizer.name}")


def export_model(options: argparse.Namespace) -> None:
    """Writes a folder for transformers: in GPT-2's format if it can express the model, else with our own class."""
    from model.exchange.huggingface import OUR_CLASS, to_huggingface
    from model.glass import open_run

    glass, output = open_run(options.checkpoint), options.output
    class_name = to_huggingface(glass.gpt, output, glass.tokenizer, document_masking=glass.document_masking)
    say(f"{output}: {class_name}, {glass.gpt.num_parameters():,} parameters")
    if class_name == OUR_CLASS:
        say("transformers lacks this architecture: load the folder with trust_remote_code=True")


if __name__ == "__main__":
    sys.exit(main())
