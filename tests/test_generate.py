"""scripts/generate.py: what a person types, and the text or the sentence that comes back."""

import io
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from data.tokenizers import END_OF_TEXT, Tokenizer, byte_level
from model.checkpoint import load_gpt
from model.generation import generate
from model.gpt import GPT
from scripts.generate import TextStream, main
from tests import programs
from tests.command_lines import call, refused, tells
from tests.gpts import change_checkpoint, hand_made_gpt, save_checkpoint, save_run

pytestmark = pytest.mark.usefixtures("own_threads")  # the program chooses a number for its process


@torch.no_grad()
def save_favourite(folder, favourite):
    """A run folder with a model over bytes, which continues each token of `favourite` with the next of them."""
    gpt, (token, _) = hand_made_gpt(layers=1, parts=2)
    gpt.head.weight.zero_()
    for before, after in zip(favourite, favourite[1:] + favourite[:1], strict=True):
        gpt.head.weight[after, token] = gpt.token_embedding.weight[before, token]
    save_checkpoint(folder / "checkpoints" / "best.ckpt", gpt)
    return folder


def test_a_checkpoint_without_a_tokenizer_gets_one_sentence(tmp_path, capsys):
    run = save_run(tmp_path / "run")
    change_checkpoint(run / "checkpoints" / "best.ckpt", tokenizer=None)
    assert str(run) in refused(main, capsys, "--checkpoint", run)


def test_the_seed_repeats_the_text_and_samples_differ(run_dir, capsys):
    def text(*options):
        return call(main, capsys, "--checkpoint", run_dir, "--prompt", "x", "--max_new_tokens", 40, *options)[1]

    assert text("--seed", 1) == text("--seed", 1) != text("--seed", 2)
    assert text() != text()
    _, first, second = re.split(r"--- sample \d ---\n", text("--num_samples", 2, "--seed", 1))
    assert first != second
    greedy = ("--greedy",)
    assert text(*greedy) == text("--temperature", 0) == text("--min_p", 1)
    assert text(*greedy, "--seed", 1) == text(*greedy, "--seed", 2) == text("--top_k", 1) == text("--top_p", 1e-9)


def test_text_stream_gives_each_character_with_its_last_byte():
    stream = TextStream(byte_level())
    assert [stream.feed(byte) for byte in "é€".encode()] == ["", "é", "", "", "€"]
    assert [stream.feed(0xE2), stream.feed(ord("a")), stream.end()] == ["", "\N{REPLACEMENT CHARACTER}a", ""]
    assert [stream.feed(0xF0), stream.end()] == ["", "\N{REPLACEMENT CHARACTER}"]
    assert [stream.feed(0xE2), stream.feed(999)] == ["", "\N{REPLACEMENT CHARACTER}" * 2]  # an id without text
    assert [stream.feed(256), stream.feed(ord("a"))] == ["", ""]  # after the end of the text nothing shows


def test_text_stream_ends_before_the_first_stop_and_holds_back_what_may_become_one():
    stream = TextStream(byte_level(), ["END", "a!"])
    assert [stream.feed(ord(letter)) for letter in "xENaEND?"] == ["x", "", "", "EN", "a", "", "", ""]
    assert (stream.ended, stream.end(), len(stream.tokens)) == ("stop", "", 7)
    stream = TextStream(byte_level(), ["END"])
    assert [stream.feed(ord(letter)) for letter in "EENN"] == ["", "E", "", "ENN"]
    assert [stream.feed(ord("E")), stream.feed(256), stream.end()] == ["", "", "E"]
    assert stream.ended == "end_of_text"
    whole = Tokenizer("words", r"[\s\S]+", byte_level().ranks | {b"xab": 257}, {END_OF_TEXT: 256})
    stream = TextStream(whole, ["bc"])  # of which a token covers a part
    assert [stream.feed(257), stream.feed(ord("c")), stream.end(), stream.ended] == ["xa", "", "", "stop"]


def test_a_prompt_that_begins_with_a_dash_is_written_as_the_sentence_says(run_dir, capsys):
    option = re.search(r"--prompt=\S+(?=\))", refused(main, capsys, "--checkpoint", run_dir, "--prompt", "-x"))[0]
    assert call(main, capsys, "--checkpoint", run_dir, option, "--max_new_tokens", 3)[1].startswith("-x")


@pytest.mark.parametrize("prompt", ["日本 naïve \N{GRINNING FACE}\x00", "<|endoftext|>", "x" * 100, ""], ids=ascii)
def test_any_prompt_is_continued_and_an_empty_one_is_named(run_dir, capsys, prompt):
    status, out, err = call(main, capsys, "--checkpoint", run_dir, "--prompt", prompt, "--max_new_tokens", 30)
    assert status == 0 and out.startswith(prompt) and out.endswith("\n") and "best.ckpt, step 7" in err
    assert err.count("empty prompt") == (prompt == "")


def test_the_prompt_comes_from_a_file_or_standard_input(run_dir, capsys, tmp_path, monkeypatch):
    path = tmp_path / "prompt.txt"
    path.write_text("über\nalles", encoding="utf-8-sig")  # a byte order mark, as of Windows, is no text
    status, out, _ = call(main, capsys, "--checkpoint", run_dir, "--prompt_file", path)
    assert status == 0 and out.startswith("über\nalles")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("von Stdin ü".encode())))
    status, out, _ = call(main, capsys, "--checkpoint", run_dir, "--prompt", "-")
    assert status == 0 and out.startswith("von Stdin ü")


# tests/model/test_generation.py has what each number of the sampling may be.

MISTAKES = {
    "--num_samples 0": "--num_samples 0",
    "--stop ''": "--stop",
    "--prompt_file a --prompt b": "--prompt_file",
    "--greedy --temperature 0.5": "--greedy",
    f"--seed {2**70}": "seed 0",
    f"--num_samples {10**18}": "--num_samples",
    f"--num_samples {10**12}": "--num_samples --max_new_tokens",
    "--prompt_file nowhere.txt": "nowhere.txt",
    "--prompt_file bytes.txt": "bytes.txt UTF-8 4 0xff",
    "--device toaster": "--device toaster",
    "--device meta": "--device meta",
    "--prompt \udcff": "--prompt UTF-8 0 0xff",
    "--max-new-tokens 3": "--max-new-tokens",
    "--stop -x": "--stop=-x",
    "--checkpoint nowhere": "nowhere",
    "--checkpoint .": "checkpoints/best.ckpt checkpoints/last.ckpt",
}


@pytest.mark.parametrize("typed", MISTAKES, ids=ascii)
def test_a_mistake_gets_one_sentence(run_dir, capsys, here, typed):
    Path("bytes.txt").write_bytes(b"one\n\xff")
    assert tells(refused(main, capsys, "--checkpoint", run_dir, *shlex.split(typed)), MISTAKES[typed])


def test_what_is_said_to_take_less_memory_does(run_dir, capsys, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("[enforce fail] you tried to allocate 9 bytes")  # in PyTorch's words

    monkeypatch.setattr(GPT, "features", full)
    for samples, remedies in ((1, "--max_new_tokens"), (2, "--num_samples --max_new_tokens")):
        assert tells(refused(main, capsys, "--checkpoint", run_dir, "--num_samples", samples), remedies)


def test_bfloat16_writes_what_the_model_in_bfloat16_does(run_dir, capsys):
    gpt = load_gpt(run_dir / "checkpoints" / "best.ckpt")[0].bfloat16()
    expected = generate(gpt, torch.tensor([list(b"ab")]), 30, temperature=0)[0]
    options = ("--checkpoint", run_dir, "--prompt", "ab", "--max_new_tokens", 30, "--greedy", "--device", "cpu")
    assert call(main, capsys, *options, "--dtype", "bfloat16")[1] == byte_level().decode(expected.tolist()) + "\n"


def test_a_text_ends_where_the_model_ends_it_or_before_a_stop(tmp_path, capsys):
    ending = save_favourite(tmp_path / "ending", [*b"ab", 256])
    assert call(main, capsys, "--checkpoint", ending, "--temperature", 0, "--prompt", "a")[1] == "ab\n"
    cut = ("--checkpoint", save_favourite(tmp_path / "cut", "aé".encode()), "--greedy", "--prompt", "a")
    assert call(main, capsys, *cut, "--max_new_tokens", 1)[1] == "a\N{REPLACEMENT CHARACTER}\n"  # within a character
    run_dir = save_favourite(tmp_path / "run", b"abcde.\n")
    options = ("--checkpoint", run_dir, "--greedy", "--prompt", "ab", "--max_new_tokens", 9)
    status, out, err = call(main, capsys, *options, "--stop", "e.", "--stop", "zz")
    assert (status, out) == (0, "abcd\n") and "--stop" not in err and "4 tokens in" in err
    status, out, err = call(main, capsys, *options, "--stop", "zz")
    assert (status, out) == (0, "abcde.\nabcd\n") and "--stop" in err
    err = call(main, capsys, *options, "--stop", "zz", "--num_samples", 2)[2]
    assert "--stop" in err and "2 of 2" in err


@pytest.mark.parametrize("option", ["--prompt=-", "--prompt=a"])
def test_a_closed_stream_gets_one_sentence(run_dir, capsys, monkeypatch, option):
    stream, said = ("stdout", "output") if option == "--prompt=a" else ("stdin", "input")
    monkeypatch.setattr(sys, stream, None)  # as Python has it after <&- or >&-
    assert tells(refused(main, capsys, "--checkpoint", run_dir, option), f"{said} closed")


def test_as_a_program_it_imports_nothing_that_only_training_needs(run_dir):
    code = "import runpy, sys; sys.modules |= dict.fromkeys(['lightning', 'datasets', 'wandb', 'matplotlib']); "
    code += "runpy.run_module('scripts.generate', run_name='__main__')"
    programs.run("-c", code, "--checkpoint", run_dir, "--max_new_tokens=3")
