"""Measures how well a GPT predicts a text: bits per byte and perplexity.

python scripts/evaluate.py                                             the newest run, on its own validation split
python scripts/evaluate.py --checkpoint runs/NAME --data.files 'my/*.txt' --stride 64             all of the files
python scripts/evaluate.py --checkpoint FOLDER --split all             a model of Hugging Face

The text is encoded by the model's own tokenizer. Bits per byte can be compared across tokenizers, perplexity cannot.
With the stride that is the context length, the default, this is what training validates with.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.mistakes import Mistake
from model.runs.exit_status import exit_status
from model.runs.run import CONFIG
from scripts.parser import DEFAULTS, add_model_options, choose_device, whole_number

if TYPE_CHECKING:
    import numpy as np

    from data.datamodule import TextDataModule
    from data.tokenizers import Tokenizer
    from model.glass import Glass

OTHER_TEXT = {"data.corpus", "data.files", "data.dataset"}  # options that say which text
# Options of the data that only training has. The tokenizer is the model's.
OF_TRAINING = {"tokenizer", "vocab_size", "context_length", "batch_size", "validation_batch_size"}
OF_TRAINING |= {"repeat_fraction", "repeat_from", "repeat_until", "random_repeat_fraction"}
OF_TRAINING |= {"seed", "num_workers", "num_threads", "cache_dir"}


@exit_status("evaluate.py")
def main(argv: list[str] | None = None) -> None:
    from jsonargparse import ArgumentParser

    from data.datamodule import TextDataModule
    from model.glass import open_run
    from model.runs.configs import layered, parse, read_config

    parser = ArgumentParser(prog="evaluate.py", description=__doc__, exit_on_error=False, **DEFAULTS)
    add = parser.add_argument
    add_model_options(parser)
    words = "tokens between the windows that are read, 1 to the context length: with a smaller one each token has more "
    words += "text before it, and it takes longer (default: the context length)"
    add("--stride", type=whole_number, metavar="N", help=words)
    words = "part of the text, split as for training, or all of it (default: all of what --data.files names, else "
    add("--split", choices=("validation", "train", "all"), help=words + "validation)")
    add("--batch_size", type=whole_number, default=16, metavar="N", help="windows at once (default: 16)")
    add("--json", action="store_true", help="write the result as one line of JSON")
    parser.add_class_arguments(TextDataModule, "data", skip=OF_TRAINING)
    argv = sys.argv[1:] if argv is None else argv
    typed = parse(parser, argv)
    glass = open_run(typed.get("checkpoint"), device=choose_device(typed.get("device", "auto")))
    trained = read_config(glass.run / CONFIG).get("data") if glass.run else None
    section = trained if isinstance(trained, dict) else {"document_masking": glass.document_masking}
    other_text = bool(OTHER_TEXT & {*typed.keys()})
    if other_text:
        section = {"document_masking": section.get("document_masking", False)}  # which the model was trained with
    known = parser.get_defaults().data
    section = {name: value for name, value in section.items() if name in known}
    arguments = layered(parser, parse(parser, json.dumps({"data": section})), typed)
    arguments.split = arguments.split or ("all" if "data.files" in typed else "validation")
    if arguments.split == "all" and "data.validation_fraction" in typed and arguments.data.max_tokens is None:
        words = "leave it out, or write --split validation"
        raise Mistake(f"--data.validation_fraction has no part in all of the text: {words}")
    arguments.other_text = other_text
    evaluate_text(arguments, glass, TextDataModule(**arguments.data.as_dict()))


def read_text(data: TextDataModule, split: str, tokenizer: Tokenizer) -> np.ndarray:
    """Tokens (N,) of a split, or of both, as training reads them. Raises Mistake where there is no text."""
    import numpy as np

    from data.text import SPLITS
    from data.token_cache import token_stream

    limits = data.cache.max_tokens
    if split != "all":
        parts = [token_stream(tokenizer, data.corpus.passages(split), limits[split])]
    elif limits["train"] is None:
        parts = [token_stream(tokenizer, data.corpus.all_passages())]
    else:  # a limit cuts each split by itself
        parts = [token_stream(tokenizer, data.corpus.passages(name), limits[name]) for name in SPLITS]
    tokens = np.array([], dtype=np.int64)
    for part in parts:
        if len(tokens) and tokens[-1] == tokenizer.end_of_text:  # with which the next part begins too
            tokens = tokens[:-1]
        tokens = np.concatenate([tokens, *part])
    if len(tokens) == 1:
        part = "" if split == "all" else f"the {split} split of "
        raise Mistake(f"{part}{data.corpus.name} holds no text: see --split, --data.files and --data.text_column")
    return tokens


def has_changed(tokens: np.ndarray, split: str, glass: Glass) -> bool:
    """Whether the run read another text as its "train" or "validation" split; False where its checkpoint tells not."""
    from model.checkpoint import read_checkpoint

    if glass.checkpoint is None or split == "all":
        return False
    state = read_checkpoint(glass.checkpoint, on_disk=True).get("TextDataModule", {})
    read = state.get({"train": "training_text", "validation": "validation_text"}[split])
    return read not in (None, zlib.crc32(tokens.astype(glass.tokenizer.dtype).data))


def evaluate_text(arguments: argparse.Namespace, glass: Glass, data: TextDataModule) -> None:
    import torch

    from data.windows import document_ids
    from model.exchange.evaluation import count_nats, loss_and_bits, text_logprobs

    gpt, tokenizer = glass.gpt, glass.tokenizer
    context_length = gpt.config.context_length
    stride = arguments.stride or context_length
    if stride > context_length:
        raise Mistake(f"--stride {stride} would leave out tokens: the model reads {context_length} at once")
    split, batch_size = arguments.split, arguments.batch_size
    tokens = read_text(data, split, tokenizer)
    if not arguments.other_text and has_changed(tokens, split, glass):
        print(f"The {split} split is not the one of this run: its files or options have changed.", file=sys.stderr)
    num_targets = len(tokens) - 1
    num_windows = 1 + max(0, -(-(num_targets - context_length) // stride))
    part = "all" if split == "all" else f"the {split} split"
    print(f"{glass}: {part} of {data.corpus.name}, {num_windows:,} windows of {context_length} tokens", file=sys.stderr)
    text, documents = torch.from_numpy(tokens), None
    if data.document_masking:
        documents = torch.from_numpy(document_ids(tokens, tokenizer.end_of_text))
    logprobs = text_logprobs(gpt, text, stride=stride, batch_size=batch_size, document_ids=documents)
    sums = count_nats(-logprobs, text[1:], torch.from_numpy(tokenizer.lengths))
    nats, bits = loss_and_bits(sums)
    result = {
        "checkpoint": str(glass),
        "text": data.corpus.name,
        "split": split,
        "documents": int((tokens[:-1] == tokenizer.end_of_text).sum()),  # each has one before it
        "bytes": tokenizer.num_bytes(tokens),
        "tokens": num_targets,
        "stride": stride,
        "nats_per_token": nats,
        "perplexity": math.exp(nats),
        "bits_per_byte": bits,
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        formats = {str: "", int: ",", float: ",.6f"}
        for name, value in result.items():
            print(f"{name.replace('_', ' '):<16}{value:{formats[type(value)]}}")


if __name__ == "__main__":
    sys.exit(main())
