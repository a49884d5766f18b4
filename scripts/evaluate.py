"""Measures how well a GPT predicts a text: bits per byte and perplexity.

python scripts/evaluate.py                                             the newest run, on its own validation split
python scripts/evaluate.py --checkpoint runs/NAME --data.files 'my/*.txt' --stride 64             all of the files
python scripts/evaluate.py --checkpoint FOLDER --split all             a model of Hugging Face

The text is encoded by the model's own tokenizer. Bits per byte can be compared across tokenizers, perplexity cannot.
With the stride that is the context length, the default, this is what training validates with.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.mistakes import Mistake, check_range, exit_status
from model.runs.run import CONFIG
from scripts.parser import DEFAULTS, add_model_options, choose_device

if TYPE_CHECKING:
    import numpy as np

    from data.datamodule import TextDataModule
    from model.glass import Glass

OTHER_TEXT = {"data.corpus", "data.files", "data.dataset"}  # options that say which text
# Options of the data, besides those of a corpus, that a text to read has too; the others are of training.
NOT_OF_TRAINING = {"corpus", "max_tokens", "document_masking", "corpus_options"}


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
    add("--stride", type=int, metavar="N", help=words)
    words = "part of the text, split as for training, or all of it (default: all of what --data.files names, else "
    add("--split", choices=("validation", "train", "all"), help=words + "validation)")
    add("--batch_size", type=int, default=16, metavar="N", help="windows at once (default: 16)")
    add("--json", action="store_true", help="write the result as one line of JSON")
    of_training = inspect.signature(TextDataModule).parameters.keys() - NOT_OF_TRAINING
    parser.add_class_arguments(TextDataModule, "data", skip=of_training)
    typed = parse(parser, sys.argv[1:] if argv is None else argv)

    named = layered(parser, typed)
    glass = open_run(named.checkpoint, device=choose_device(named.device))
    is_own_text = OTHER_TEXT.isdisjoint(typed.keys())
    own = {"document_masking": glass.document_masking}
    if glass.run and is_own_text:
        trained = read_config(glass.run / CONFIG).get("data", {})
        own |= {name: value for name, value in trained.items() if name in named.data}
    options = layered(parser, parse(parser, json.dumps({"data": own})), typed)
    split = options.split or ("all" if "data.files" in typed else "validation")
    if split == "all" and "data.validation_fraction" in typed:
        words = "leave it out, or write --split validation"
        raise Mistake(f"--data.validation_fraction has no part in all of the text: {words}")
    context = glass.gpt.config.context_length
    stride = context if options.stride is None else options.stride
    check_range("--stride", stride, 1, context)  # a larger one would leave out tokens
    check_range("--batch_size", options.batch_size, 1)

    data = TextDataModule(**options.data.as_dict())
    tokens = read_text(data, split, glass)
    if is_own_text and split != "all" and not was_read(tokens, glass):
        print(f"The {split} split is not the one of this run: its files or options have changed.", file=sys.stderr)
    print(f"{glass} reads {data.corpus.name}, --split {split}: {len(tokens):,} tokens", file=sys.stderr)
    about = {"checkpoint": str(glass), "text": data.corpus.name, "split": split}
    result = about | measure(glass, tokens, stride, options.batch_size, options.data.document_masking)
    if options.json:
        print(json.dumps(result))
    else:
        formats = {str: "", int: ",", float: ",.6f"}
        for name, value in result.items():
            print(f"{name.replace('_', ' '):<16}{value:{formats[type(value)]}}")


def read_text(data: TextDataModule, split: str, glass: Glass) -> np.ndarray:
    """Tokens (N,) of a split as training reads it, or of the whole text. Raises Mistake where there is no text."""
    import numpy as np

    from data.token_cache import token_stream

    is_whole = split == "all"
    passages = data.corpus.all_passages() if is_whole else data.corpus.passages(split)
    limit = data.cache.max_tokens["train" if is_whole else split]
    tokens = np.concatenate([*token_stream(glass.tokenizer, passages, limit)])
    if len(tokens) == 1:
        where = "see --data.files and --data.text_column"
        raise Mistake(f"{data.corpus.name} holds no text to read with --split {split}: {where}")
    return tokens


def was_read(tokens: np.ndarray, glass: Glass) -> bool:
    """Whether these are the tokens of a split that the run has read; True where its checkpoint does not tell."""
    from model.checkpoint import read_checkpoint

    state = glass.checkpoint and read_checkpoint(glass.checkpoint, on_disk=True).get("TextDataModule")
    return not state or zlib.crc32(tokens.data) in state.values()


def measure(glass: Glass, tokens: np.ndarray, stride: int, batch_size: int, within_documents: bool) -> dict[str, Any]:
    """How well the model predicts tokens (N,), and how many there are. stride, batch_size: as in `text_logprobs`."""
    import torch

    from data.windows import document_ids
    from model.exchange.evaluation import count_nats, loss_and_bits, text_logprobs

    tokenizer = glass.tokenizer
    text, documents = torch.from_numpy(tokens.astype("int64")), None
    if within_documents:
        documents = torch.from_numpy(document_ids(tokens, tokenizer.end_of_text))
    logprobs = text_logprobs(glass.gpt, text, stride=stride, batch_size=batch_size, document_ids=documents)
    nats, bits = loss_and_bits(count_nats(-logprobs, text[1:], torch.from_numpy(tokenizer.lengths)))
    return {
        "documents": int((tokens[:-1] == tokenizer.end_of_text).sum()),  # each has one before it
        "bytes": tokenizer.num_bytes(tokens),
        "tokens": len(logprobs),
        "stride": stride,
        "nats_per_token": nats,
        "perplexity": math.exp(nats),
        "bits_per_byte": bits,
    }


if __name__ == "__main__":
    sys.exit(main())
