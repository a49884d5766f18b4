"""Tokenises ahead of time what a training run will read, and says where the tokens are."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(ROOT))

from jsonargparse import ArgumentParser  # noqa: E402

from data.module import TextDataModule  # noqa: E402
from model.training.command_line import sentence  # noqa: E402
from scripts.parser import Parser  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, 2 for a mistake, 130 when interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    config, options = config_option().parse_known_args(argv)
    parser = data_options()
    try:
        data = json.dumps(data_section(config.config))
        arguments = parser.parse_args(["--data", data, *options])
        print(report(TextDataModule(**arguments.data.as_dict())))
    except KeyboardInterrupt:
        print(
            "prepare_data.py: stopped; what is finished is kept, and the next call goes on behind it", file=sys.stderr
        )
        return 130
    except (ValueError, TypeError, OSError, argparse.ArgumentError) as error:
        print(f"prepare_data.py: {sentence(error)}", file=sys.stderr)
        return 2
    return 0


def config_option() -> argparse.ArgumentParser:
    parser = Parser(prog="prepare_data.py", add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--config",
        type=Path,
        default=ROOT / "configs" / "default.yaml",
        metavar="PATH",
        help="YAML of a training run; its data part is read (default: configs/default.yaml)",
    )
    return parser


def data_options() -> ArgumentParser:
    """The options of TextDataModule as train.py has them, so that both come to the same tokens."""
    parser = ArgumentParser(
        prog="prepare_data.py",
        description=__doc__,
        exit_on_error=False,
        allow_abbrev=False,
        parents=[config_option()],
    )
    parser.add_class_arguments(TextDataModule, "data")
    return parser


def data_section(config: Path) -> dict:
    """The `data:` part of a training YAML, with the context length, which stands with the model.

    Raises ValueError or OSError where there is none to read.
    """
    try:
        content = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{config} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{config} is not the configuration of a training run: it has no options")

    def options(parent: dict, name: str) -> dict:
        section = {} if parent.get(name) is None else parent[name]
        if not isinstance(section, dict):
            raise ValueError(f"{config} is not the configuration of a training run: under {name} it has no options")
        return section

    data = options(content, "data")
    context_length = options(options(content, "model"), "gpt").get("context_length")
    return data if context_length is None else {"context_length": context_length, **data}


def report(data: TextDataModule) -> str:
    """Tokenises where that is still to do; a table of what there is."""
    data.prepare_data()
    data.setup()
    tokenized = data.tokenized
    lines = [f"{'split':<12}{'documents':>14}{'tokens':>18}{'bytes':>18}{'bytes/token':>13}"]
    for split, tokens in (("train", tokenized.train), ("validation", tokenized.validation)):
        ratio = tokens.num_bytes / tokens.num_tokens
        lines.append(
            f"{split:<12}{tokens.num_documents:>14,}{tokens.num_tokens:>18,}{tokens.num_bytes:>18,}{ratio:>13.3f}"
        )
    lines.append(f"tokenizer {tokenized.tokenizer.name}, {tokenized.tokenizer.vocab_size:,} tokens")
    lines.append(f"in {tokenized.folder}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
