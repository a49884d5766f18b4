"""Converts models between this project and Hugging Face's libraries.

python scripts/convert_huggingface.py import gpt2 gpt2.ckpt       a model of the Hub, or a folder -> a checkpoint
python scripts/convert_huggingface.py export runs/NAME folder     a checkpoint -> a folder for transformers

It needs pip install -r requirements-hf.txt.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.mistakes import Mistake, exit_status
from scripts.parser import Parser

if TYPE_CHECKING:
    from data.tokenizers import Tokenizer


@exit_status("convert_huggingface.py")
def main(argv: list[str] | None = None) -> None:
    parser = Parser(prog="convert_huggingface.py", description=__doc__)
    commands = parser.add_subparsers(metavar="import | export", required=True)

    reads = commands.add_parser("import", help="a model in GPT-2's format, or one exported here -> a checkpoint")
    words = "folder with config.json and model.safetensors, or name on the Hub"
    reads.add_argument("source", metavar="SOURCE", help=words)
    reads.add_argument("output", type=Path, metavar="OUT.ckpt", help="checkpoint to write")
    words = "bytes or a published encoding such as gpt2, in place of the model's own tokenizer files"
    reads.add_argument("--tokenizer", metavar="NAME", help=words)
    reads.set_defaults(run=import_model)

    writes = commands.add_parser("export", help="a checkpoint -> a folder for transformers")
    writes.add_argument("checkpoint", type=Path, metavar="RUN", help="checkpoint file or run folder")
    writes.add_argument("output", type=Path, metavar="OUT_DIR", help="folder to write")
    writes.set_defaults(run=export_model)

    options = parser.parse_args(argv)
    options.run(options)


def import_model(options: argparse.Namespace) -> None:
    """Writes a checkpoint that every script and --model.init_from take."""
    import torch

    from model.checkpoint import WEIGHT_PREFIX
    from model.exchange.huggingface import check_vocabulary, from_huggingface, local_folder, masks_documents
    from model.files import atomic_file

    output = options.output
    if output.exists():
        raise Mistake(f"{output} exists already: name a new file")
    folder = local_folder(options.source)
    gpt = from_huggingface(folder)
    tokenizer = tokenizer_of(folder, options.tokenizer)
    check_vocabulary(gpt, tokenizer)
    checkpoint = {
        "state_dict": {WEIGHT_PREFIX + name: weight for name, weight in gpt.state_dict().items()},
        "gpt_config": asdict(gpt.config),
        "tokenizer": tokenizer.to_dict(),
        "global_step": 0,
        "document_masking": masks_documents(folder),
    }
    with atomic_file(output) as file:
        torch.save(checkpoint, file)
    print(f"{output}: {gpt.num_parameters():,} parameters, tokenizer {tokenizer.name}")


def tokenizer_of(folder: Path, name: str | None) -> Tokenizer:
    """The tokenizer of that name, or the one in the folder."""
    from data.tokenizers import Tokenizer, published

    if name == "bpe":
        raise Mistake("--tokenizer bpe would be trained on your text: name bytes or a published encoding")
    return published(name) if name else Tokenizer.from_folder(folder)


def export_model(options: argparse.Namespace) -> None:
    from model.exchange.huggingface import OUR_CLASS, to_huggingface
    from model.glass import open_run

    glass, output = open_run(options.checkpoint), options.output
    class_name = to_huggingface(glass.gpt, output, glass.tokenizer, document_masking=glass.document_masking)
    print(f"{output}: {class_name}, {glass.gpt.num_parameters():,} parameters")
    if class_name == OUR_CLASS:
        print("transformers has no such architecture: load it with trust_remote_code=True")


if __name__ == "__main__":
    sys.exit(main())
