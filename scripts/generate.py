"""Writes text with a trained GPT, to the terminal as it is drawn."""

from __future__ import annotations

import argparse
import codecs
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model.runs.command_line import exit_status
from model.runs.folder import find_checkpoint
from scripts.parser import Parser, at_least
from scripts.prompting import open_checkpoint, prompt_text

if TYPE_CHECKING:
    import torch

    from data.tokenizers import Tokenizer

DESCRIPTION = """\
Continues a prompt with a trained GPT and writes the text as it is drawn. Everything it needs is in the checkpoint.
The window slides: of a prompt longer than the model's context only the end is read, and a text that outgrows the
context continues from the last half of it. A text ends early where the model ends its document."""

# A model can write any byte; on a terminal a control character would act instead of show.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}


@exit_status("generate.py")
def main(argv: list[str] | None = None) -> None:
    arguments = build_parser().parse_args(argv)
    if sys.stdout is None:
        raise ValueError("standard output is closed, so the text has nowhere to go")
    if arguments.seed is not None and not 0 <= arguments.seed < 2**63:
        raise ValueError(f"--seed must lie in 0..2^63 - 1, not {arguments.seed}")
    try:
        generate(arguments, prompt_text(arguments.prompt, arguments.prompt_file))
    except (MemoryError, RuntimeError) as error:
        # PyTorch has no type of its own for a processor's memory that is used up, but says the same as for a GPU's.
        if isinstance(error, RuntimeError) and "tried to allocate" not in str(error).lower():
            raise
        raise ValueError(f"the memory is too small for --num_samples {arguments.num_samples}: ask for fewer") from error


def build_parser() -> argparse.ArgumentParser:
    """The options. Each help text names the unit and the default."""
    parser = Parser(prog="generate.py", description=DESCRIPTION)
    add = parser.add_argument
    add("--checkpoint", type=Path, metavar="PATH", help="checkpoint file or run folder (default: newest under runs/)")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt",
        default="\n",
        metavar="TEXT",
        help="text to continue; - reads it from standard input; an empty one starts a document (default: a line break)",
    )
    prompt.add_argument("--prompt_file", type=Path, metavar="PATH", help="UTF-8 file with the text to continue")
    add("--max_new_tokens", type=int, default=200, metavar="N", help="tokens to write at most, >= 1 (default: 200)")
    add("--temperature", type=float, default=0.8, metavar="X", help="divides the logits; 0 = likeliest (default: 0.8)")
    add("--top_k", type=int, metavar="N", help="draw from the N likeliest tokens only (default: from all)")
    add(
        "--top_p",
        type=float,
        metavar="P",
        help="draw from the likeliest tokens that together have probability P, in (0, 1] (default: from all)",
    )
    add("--num_samples", type=at_least(1), default=1, metavar="N", help="texts to write, drawn together (default: 1)")
    add("--seed", type=int, metavar="N", help="number that makes the texts repeatable (default: a new one each time)")
    add("--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1, mps, ... (default: auto, the fastest)")
    return parser


def generate(arguments: argparse.Namespace, prompt: str) -> None:
    """Draws all samples together and writes them. Raises ValueError or OSError with a sentence for the person."""
    import torch  # takes a second: --help and mistakes in the options need not wait for it

    from model.generation import stream
    from model.kernels import record_cuda_graph

    device = choose_device(arguments.device)
    checkpoint = find_checkpoint(arguments.checkpoint)
    model, tokenizer, step = open_checkpoint(checkpoint, device)
    generator = torch.Generator(device)
    if arguments.seed is None:
        generator.seed()
    else:
        generator.manual_seed(arguments.seed)

    # Every document of the training text begins after an end-of-text token, so an empty prompt is that token.
    prompt_tokens = tokenizer.encode(prompt) or [tokenizer.end_of_text]
    # 2^44 rows are more than any memory can hold; sizes beyond 64 bits would fail in ways of their own.
    prompts = torch.tensor([prompt_tokens], device=device).repeat(min(arguments.num_samples, 2**44), 1)
    new_tokens = stream(
        model,
        prompts,
        arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        generator=generator,
        stop_token=tokenizer.end_of_text,
        record=record_cuda_graph if device.type == "cuda" else None,
    )
    first_tokens = next(new_tokens)  # takes the memory for all samples, before anything is written
    print(f"{checkpoint}, step {step}, on {device}", file=sys.stderr)
    write_samples(prompt, chain([first_tokens], new_tokens), arguments.num_samples, tokenizer)


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is the accelerator, else the CPU. Raises ValueError if there is none such."""
    import torch

    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.empty(0, device=name).device
        torch.Generator(device)  # fails for a device without random numbers, such as "meta"
        return device
    except (RuntimeError, AssertionError) as error:  # the latter from a PyTorch built without CUDA
        raise ValueError(f"--device {name} is not available here: {str(error).splitlines()[0]}") from error


class TextStream:
    """Turns tokens into text. A character spread over several tokens appears with the last of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.ended = False

    def feed(self, token: int) -> str:
        """The characters that `token` completes; none after the end of the text."""
        self.ended = self.ended or token == self.tokenizer.end_of_text
        if self.ended:
            return ""
        try:
            return self.decoder.decode(self.tokenizer.token_bytes(token))
        except KeyError:  # an id without text, where the vocabulary was rounded up
            return self.end() + "\N{REPLACEMENT CHARACTER}"

    def end(self) -> str:
        """A replacement character for an incomplete character, else nothing."""
        text = self.decoder.decode(b"", final=True)
        self.decoder.reset()
        return text


def write_samples(prompt: str, new_tokens: Iterable[torch.Tensor], num_samples: int, tokenizer: Tokenizer) -> None:
    """Writes the first sample token by token, then the others. new_tokens: (num_samples,) at each position."""

    def title(number: int) -> str:
        return f"--- sample {number} ---\n" if num_samples > 1 else ""

    first, *others = [TextStream(tokenizer) for _ in range(num_samples)]
    waiting = [""] * len(others)
    write_text(title(1) + prompt)
    for tokens in new_tokens:
        token, *rest = tokens.tolist()
        write_text(first.feed(token))
        waiting = [text + other.feed(token) for text, other, token in zip(waiting, others, rest, strict=True)]
    write_text(first.end() + "\n")
    for number, (text, other) in enumerate(zip(waiting, others, strict=True), start=2):
        write_text(title(number) + prompt + text + other.end() + "\n")


def write_text(text: str) -> None:
    """Writes to standard output at once; a character that its encoding lacks becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, errors="replace").decode(encoding)
    if sys.stdout.isatty():
        text = text.translate(CONTROL_PICTURES)
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
