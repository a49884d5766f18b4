"""Tokenises ahead of time the text that a training run will read, and says where the tokens are.

It takes the options --data.* of train.py, all of them, so that both find the same tokens; those that only say how the
tokens are trained on, such as --data.batch_size, change nothing here.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.runs.mistakes import exit_status
from scripts.parser import Parser, text_data

DEFAULT_CONFIG = Path(__file__).resolve().parents[1] / "configs" / "default.yaml"


@exit_status("prepare_data.py", (ValueError, TypeError, OSError))
def main(argv: list[str] | None = None) -> None:
    own = Parser(prog="prepare_data.py", description=__doc__, add_help=False)
    words = "YAML of a training run; its data part is read (default: configs/default.yaml)"
    own.add_argument("--config", type=Path, default=DEFAULT_CONFIG, metavar="PATH", help=words)
    known, options = own.parse_known_args(argv)
    data = text_data(own, data_section(known.config), options)
    try:
        data.setup()
    except KeyboardInterrupt:
        print("prepare_data.py: stopped; the next call starts again with the split that is not whole", file=sys.stderr)
        raise
    tokenized = data.tokenized
    print(f"{'split':<12}{'documents':>14}{'tokens':>18}{'bytes':>18}{'bytes/token':>13}")
    for split, part in (("train", tokenized.train), ("validation", tokenized.validation)):
        counts = f"{part.num_documents:>14,}{part.num_tokens:>18,}{part.num_bytes:>18,}"
        print(f"{split:<12}{counts}{part.num_bytes / part.num_tokens:>13.3f}")
    print(f"tokenizer {tokenized.tokenizer.name}, {tokenized.tokenizer.vocab_size:,} tokens")
    print(f"in {tokenized.folder}")


def data_section(config: Path) -> dict:
    """The `data:` part of a training YAML, with what it has of the model: the context length and its tokenizer."""
    from model.runs.configs import check_sections, read_config
    from model.runs.folder import find_model
    from model.training.initial import place_of

    if not config.is_file():
        raise FileNotFoundError(f"there is no config {config}")
    check_sections(config)
    content = read_config(config)
    model, data = content.get("model", {}), content.get("data", {})
    context_length, init_from = model.get("gpt", {}).get("context_length"), model.get("init_from")
    shared = {} if context_length is None else {"context_length": context_length}
    if init_from is not None and "tokenizer" not in data:
        shared["tokenizer"] = place_of(find_model(init_from))
    return shared | data


if __name__ == "__main__":
    sys.exit(main())
