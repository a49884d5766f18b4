"""Converts models from and to the formats of Hugging Face's libraries.

python scripts/convert_huggingface.py import gpt2 gpt2.ckpt       reads a model on the Hub or in a folder, writes a file
python scripts/convert_huggingface.py export runs/NAME folder     reads a checkpoint, writes a folder for transformers

Install the packages that this needs first: pip install -r requirements-hf.txt
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.mistakes import Mistake
from model.runs.terminal import exit_status, say
from scripts.parser import read_command


@exit_status
def main(argv: list[str] | None = None) -> None:
    commands = {"import": import_model, "export": export_model}
    options = read_command(commands, argv, __doc__)
    commands[options.pop("command")](**options)


def import_model(source: str, output: Path, *, tokenizer: str | None = None) -> None:
    """Writes a checkpoint that every script can read, and train.py with --model.init_from.

    Args:
        source: folder with config.json and model.safetensors, in GPT-2's format or exported by this project; or name of
            a model on the Hub
        output: checkpoint file to write; it must not exist yet
        tokenizer: bytes, or a published encoding such as gpt2 (default: the tokenizer.json of the model)
    """
    import torch

    from data.tokenizers import Tokenizer, published
    from model.checkpoint import WEIGHT_PREFIX, entries_of
    from model.exchange.huggingface import check_vocabulary, from_huggingface, local_folder, masks_documents
    from model.files import atomic_file
    from model.proof import NUM_TOKENS

    if output.exists():
        raise Mistake(f"{output} already exists: name a new file")
    folder = local_folder(source)
    gpt = from_huggingface(folder)
    encoding = published(tokenizer) if tokenizer else Tokenizer.from_folder(folder)
    check_vocabulary(gpt, encoding)
    weights = {WEIGHT_PREFIX + name: weight for name, weight in gpt.state_dict().items()}
    tokens = torch.arange(min(gpt.config.vocab_size, NUM_TOKENS + 1))
    checkpoint = entries_of(gpt, weights, encoding, tokens, masks_documents(folder))
    with atomic_file(output) as file:
        torch.save(checkpoint | {"state_dict": weights, "global_step": 0}, file)
    say(f"{output}: {gpt.num_parameters():,} parameters, tokenizer {encoding.name}")


def export_model(checkpoint: Path, output: Path) -> None:
    """Writes a folder for transformers: in GPT-2's format if it can express the model, else with our own class.

    Args:
        checkpoint: run folder, whose best checkpoint is read, or checkpoint file
        output: folder to write; it must not exist yet, or be empty
    """
    from model.exchange.huggingface import OUR_CLASS, to_huggingface
    from model.glass import open_run

    glass = open_run(checkpoint)
    class_name = to_huggingface(glass.gpt, output, glass.tokenizer, document_masking=glass.document_masking)
    say(f"{output}: {class_name}, {glass.gpt.num_parameters():,} parameters")
    if class_name == OUR_CLASS:
        say("transformers lacks this architecture: load the folder with trust_remote_code=True")


if __name__ == "__main__":
    sys.exit(main())
