"""Measures how well GPTs predict a text: bits per byte and perplexity.

python scripts/evaluate.py                                             the newest run, on its own validation split
python scripts/evaluate.py --checkpoint runs/NAME --data.files 'my/*.txt' --stride 64             all of these files
python scripts/evaluate.py --checkpoint FOLDER --split all             a Hugging Face model, on the corpus stdlib
python scripts/evaluate.py --checkpoint runs/lr-* --json               several runs, each a line of JSON

The model's own tokenizer encodes the text. Bits per byte can be compared across tokenizers, perplexity cannot.
With the default stride, the context length, the results are computed as in the validation during training.
Unless --data.corpus, --data.files or --data.dataset names a text, the --data options of the run apply.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.mistakes import Mistake, check_range
from model.runs.run import CONFIG
from model.runs.terminal import exit_status, say
from scripts.parser import DEFAULTS, add_model_options, choose_device

if TYPE_CHECKING:
    import numpy as np
    from jsonargparse import ArgumentParser, Namespace

    from data.text import Corpus
    from model.glass import Glass

OTHER_TEXT = {"data.corpus", "data.files", "data.dataset"}  # each of these options replaces the text of the run


@exit_status("evaluate.py")
def main(argv: list[str] | None = None) -> None:
    from model.runs.configs import layered, parse

    sys.path.append("")  # the user's own corpus lies in the current folder
    parser = build_parser()
    typed = parse(parser, sys.argv[1:] if argv is None else argv)

    from model.glass import open_run  # after --help has ended: it imports torch

    options = layered(parser, typed)
    for path in options.checkpoint or [None]:
        evaluate(open_run(path, device=choose_device(options.device)), parser, typed)


def evaluate(glass: Glass, parser: ArgumentParser, typed: Namespace) -> None:
    """Prints how well one model predicts the text that the `typed` options name, or its run's own text."""
    from data.corpora import CorpusOptions, build
    from model.checkpoint import read_checkpoint
    from model.runs.configs import check_plain, layered, parse, read_config

    of_run: dict[str, Any] = {}
    if glass.folder and OTHER_TEXT.isdisjoint(typed.keys()):
        path, known = glass.folder / CONFIG, parser.get_defaults().data
        of_run = {name: value for name, value in read_config(path).get("data", {}).items() if name in known}
        check_plain(path, "data.corpus", of_run.get("corpus", "stdlib"))
    options = layered(parser, parse(parser, json.dumps({"data": of_run})), typed)
    names_whole_files = "data.files" in typed and "data.validation_fraction" not in typed
    split = options.split or ("all" if names_whole_files else "validation")
    context = glass.gpt.config.context_length
    stride = context if options.stride is None else options.stride
    check_range("--stride", stride, 1, context)  # with a larger stride, tokens between windows would be skipped

    data = options.data.as_dict()
    name, max_tokens = data.pop("corpus"), data.pop("max_tokens")
    corpus_options = CorpusOptions(**data)
    corpus = build(name, corpus_options)
    limit = corpus_options.token_limits(max_tokens)["train" if split == "all" else split]
    tokens = read_text(corpus, split, limit, glass)
    if of_run and split != "all":
        trained_on = read_checkpoint(Path(glass.path), on_disk=True).get("TextDataModule", {})
        if zlib.crc32(tokens.data) not in trained_on.values():
            changed = [f"--{name}" for name, _ in typed.items() if name.startswith("data.")] or ["files or options"]
            say(f"This is not the {split} split that the run read; changed since: {', '.join(changed)}", sys.stderr)
    result = {"checkpoint": str(glass.path), "step": glass.step, "text": corpus.name, "split": split}
    result |= measure(glass, tokens, stride)
    if options.json:
        say(json.dumps(result))
        return
    formats = {str: "", int: ",", float: ",.6f"}
    for name, value in result.items():
        if value is not None:
            say(f"{name.replace('_', ' '):<16}{value:{formats[type(value)]}}")


def build_parser() -> ArgumentParser:
    from jsonargparse import ArgumentParser

    from data.corpora import CorpusOptions

    parser = ArgumentParser(prog="evaluate.py", description=__doc__, exit_on_error=False, **DEFAULTS)
    add_model_options(parser, nargs="+")
    add = parser.add_argument
    add(
        "--stride",
        type=int,
        metavar="N",
        help="tokens between the starts of consecutive windows, 1 to the context length. A smaller stride gives each "
        "token more text before it, and takes longer (default: the context length)",
    )
    add(
        "--split",
        choices=("validation", "train", "all"),
        help="part of the text to read, divided as in training (default: all if --data.files is set without "
        "--data.validation_fraction, else validation)",
    )
    add("--json", action="store_true", help="print the result of each model as one line of JSON")
    parser.add_class_arguments(CorpusOptions, "data")
    add(
        "--data.corpus",
        default="stdlib",
        help="stdlib, files, hub, repetitions or your own, as for train.py (default: stdlib)",
    )
    add("--data.max_tokens", type=int | None, help="most tokens to read, as for train.py (default: no limit)")
    return parser


def read_text(corpus: Corpus, split: str, limit: int | None, glass: Glass) -> np.ndarray:
    """Returns the tokens (N,) of a split as training reads it, or of the whole text. Raises Mistake if it is empty."""
    import numpy as np

    from data.token_cache import token_stream

    passages = corpus.all_passages() if split == "all" else corpus.passages(split)
    tokens = np.concatenate([*token_stream(glass.tokenizer, passages, limit)])
    if len(tokens) == 1:  # the end-of-text with which every stream begins
        raise Mistake(f"{corpus.name} has no text for --split {split}: check --data.files and --data.text_column")
    return tokens


def measure(glass: Glass, tokens: np.ndarray, stride: int) -> dict[str, Any]:
    """Returns how well the model predicts tokens (N,), and how many documents, bytes and tokens these are.

    stride: as in `text_logprobs`. Earlier documents are hidden if the model was trained so.
    """
    import numpy as np
    import torch

    from model.losses import count_nats, loss_and_bits, text_logprobs
    from model.masks import document_ids

    tokenizer, text = glass.tokenizer, torch.from_numpy(tokens.astype("int64"))
    documents = document_ids(text, tokenizer.end_of_text) if glass.document_masking else None
    logprobs = text_logprobs(glass.gpt, text, stride=stride, document_ids=documents)
    nats, bits = loss_and_bits(count_nats(-logprobs, text[1:], torch.from_numpy(tokenizer.lengths)))
    return {
        "documents": int((tokens[:-1] == tokenizer.end_of_text).sum()),  # each document has an end-of-text before it
        "bytes": tokenizer.num_bytes(tokens),
        "tokens": len(logprobs),
        "stride": stride,
        "nats_per_token": nats,
        "perplexity": float(np.exp(nats)),  # infinite where math.exp raises an error
        "bits_per_byte": bits,
    }


if __name__ == "__main__":
    sys.exit(main())
