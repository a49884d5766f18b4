"""Measures how well GPTs predict a text: bits per byte and perplexity.

python scripts/evaluate.py                                             the newest run, on its own validation split
python scripts/evaluate.py --checkpoint runs/NAME --data.files 'my/*.txt' --stride 64             all of these files
python scripts/evaluate.py --checkpoint FOLDER --split all             a Hugging Face model, on the corpus stdlib
python scripts/evaluate.py --checkpoint runs/lr-* --json               several runs, each a line of JSON

The model's own tokenizer encodes the text. Bits per byte can be compared across tokenizers, perplexity cannot.
With the default stride, the context length, the results are computed as in the validation during training, unless
trainer.limit_val_batches of the run leaves some text out.
Unless --data.corpus, --data.files or --data.dataset names a text, the --data options of the run apply.
"""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.mistakes import Mistake, check_range
from model.runs.run import CONFIG
from model.runs.terminal import exit_status, say
from scripts.parser import DEFAULTS, add_parameters

if TYPE_CHECKING:
    import numpy as np
    from jsonargparse import ArgumentParser, Namespace

    from model.glass import Glass


@exit_status
def main(argv: list[str] | None = None) -> None:
    from jsonargparse import ArgumentParser

    from data.corpora import CorpusOptions
    from model.runs.configs import layered, parse

    sys.path.append("")  # the user's own corpus lies in the current folder
    parser = ArgumentParser(description=__doc__, exit_on_error=False, **DEFAULTS)
    add_parameters(parser, evaluate)
    parser.add_class_arguments(CorpusOptions, "data")
    typed = parse(parser, sys.argv[1:] if argv is None else argv)
    options = layered(parser, typed).as_dict()
    del options["data"]
    evaluate(parser, typed, **options)


def evaluate(
    parser: Any,
    typed: Any,
    *,
    checkpoint: list[str] | None = None,
    device: str = "auto",
    stride: int | None = None,
    split: Literal["validation", "train", "all"] | None = None,
    json: bool = False,
) -> None:
    """Prints how well each model predicts the text that the `typed` options name, or its run's own text.

    Args:
        checkpoint: checkpoint files, run folders or folders of Hugging Face models (default: newest run under runs/)
        device: cpu, cuda, cuda:1, mps, ...; auto: a GPU if there is one
        stride: tokens between the starts of consecutive windows, 1 to the context length. A smaller stride gives each
            token more text before it, and takes longer (default: the context length)
        split: part of the text to read, divided as in training (default: all if --data.files is set without
            --data.validation_fraction, else validation)
        json: print the result of each model as one line of JSON
    """
    from model.glass import open_run
    from model.inspection.reading import as_json

    names_whole_files = "data.files" in typed and "data.validation_fraction" not in typed
    split = split or ("all" if names_whole_files else "validation")
    for path in checkpoint or [None]:
        glass = open_run(path, device=device)
        context = glass.gpt.config.context_length
        check_range("--stride", stride, 1, context)  # with a larger one, tokens between windows would be skipped
        name, tokens = read_text(glass, parser, typed, split)
        result = {"checkpoint": str(glass.path), "step": glass.step, "text": name, "split": split}
        result |= measure(glass, tokens, stride or context)
        if json:
            say(dumps(as_json(result, ".17g")))  # JSON has no infinity and no NaN: they are null
            continue
        formats = {str: "", int: ",", float: ",.6f"}
        for name, value in result.items():
            if value is not None:
                say(f"{name.replace('_', ' '):<16}{value:{formats[type(value)]}}")


def read_text(glass: Glass, parser: ArgumentParser, typed: Namespace, split: str) -> tuple[str, np.ndarray]:
    """Returns the name of a text, and the tokens (N,) of a split as training reads it, or of the whole text.

    Raises Mistake if it is empty.
    """
    import numpy as np

    from data.corpora import CorpusOptions, build
    from data.token_cache import token_stream
    from model.runs.configs import check_plain, layered, names_text, parse, read_config

    of_run: dict[str, Any] = {}
    if glass.folder and not names_text(typed):
        path, known = glass.folder / CONFIG, parser.get_defaults().data
        of_run = {name: value for name, value in read_config(path).get("data", {}).items() if name in known}
        check_plain(path, "data.corpus", of_run.get("corpus", "stdlib"))
    data = layered(parser, parse(parser, dumps({"data": of_run})), typed).data
    options = CorpusOptions(**data.as_dict())
    corpus = build(options)
    limit = options.token_limits["train" if split == "all" else split]
    passages = corpus.all_passages() if split == "all" else corpus.passages(split)
    tokens = np.concatenate([*token_stream(glass.tokenizer, passages, limit)])
    if len(tokens) == 1:  # the end-of-text with which every stream begins
        raise Mistake(f"{corpus.name} has no text for --split {split}: check --data.files and --data.text_column")
    return corpus.name, tokens


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
