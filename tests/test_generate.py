"""scripts/generate.py: what a person types, and the text or the sentence that comes back."""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from data.tokenizers import END_OF_TEXT, Tokenizer, byte_level
from model.checkpoint import load_gpt
from model.generation import generate
from model.gpt import GPT, GPTConfig
from scripts.generate import TextStream, main
from tests.command_lines import call, refused
from tests.gpts import change_checkpoint, letters_alone, random_gpt, save_checkpoint, save_run
from tests.small_runs import REPOSITORY
from tests.watching import before_call


@torch.no_grad()
def save_favourite(folder, favourite):
    """A run folder with a model over bytes, which continues each token of `favourite` with the next of them.

    Its head answers each token's own direction in the embedding with the token that follows it.
    """
    gpt, _ = load_gpt(save_run(folder))
    nn.init.zeros_(gpt.head.weight)
    for block in gpt.blocks:
        block.attention.output_proj.weight.zero_()
        block.feed_forward.down_proj.weight.zero_()
    gpt.token_embedding.weight.normal_()
    for before, after in zip(favourite, favourite[1:] + favourite[:1], strict=True):
        gpt.head.weight[after] += gpt.token_embedding.weight[before]
    save_checkpoint(folder / "checkpoints" / "best.ckpt", gpt)
    return folder


@pytest.fixture(autouse=True)
def own_threads():
    """The program chooses a number of threads for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_checkpoint_without_a_tokenizer_or_with_one_that_cannot_read_the_prompt_gets_one_sentence(tmp_path, capsys):
    run = save_run(tmp_path / "run")
    change_checkpoint(run / "checkpoints" / "best.ckpt", tokenizer=letters_alone())
    for option, status in (("--prompt=123 ABC", 2), ("--prompt=\n", 0), ("--max_new_tokens=3", 0)):
        found, _, err = call(main, capsys, "--checkpoint", run, "--max_new_tokens", 2, option)
        assert (found, "has no token for anything in '123 ABC'" in err) == (status, status == 2)
    change_checkpoint(run / "checkpoints" / "best.ckpt", tokenizer=None)
    assert str(run) in refused(main, capsys, "--checkpoint", run)


def test_one_small_text_takes_one_thread_and_many_take_all(run_dir, capsys, monkeypatch):
    monkeypatch.setattr("model.kernels.SMALL_STEP", 100_000)  # the model needs 33 thousand products for a token
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    for samples in (1, 4):
        call(main, capsys, "--checkpoint", run_dir, "--num_samples", samples, "--max_new_tokens", 2)
    assert chosen == [1, 3]


def test_the_seed_repeats_the_text_and_without_one_equal_prompts_get_texts_of_their_own(run_dir, capsys, tmp_path):
    def text(*options):
        return call(main, capsys, "--checkpoint", run_dir, "--prompt", "x", "--max_new_tokens", 40, *options)[1]

    assert text("--seed", 1) == text("--seed", 1) != text("--seed", 2)
    assert text() != text()
    (tmp_path / "prompts.txt").write_text("a\na\n", encoding="utf-8")
    options = ("--checkpoint", run_dir, "--prompts", tmp_path / "prompts.txt", "--json", "--temperature", 2)
    first, second = (json.loads(line)["text"] for line in call(main, capsys, *options)[1].splitlines())
    assert first != second
    greedy = ("--greedy",)
    assert text(*greedy) == text("--temperature", 0) == text("--min_p", 1) != text(*greedy, "--repetition_penalty", 2)
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


@pytest.mark.parametrize("prompt", ["日本 naïve \N{GRINNING FACE}\x00", "<|endoftext|>", "x" * 100, ""], ids=ascii)
def test_any_prompt_is_continued_and_an_empty_one_is_named(run_dir, capsys, prompt):
    status, out, err = call(main, capsys, "--checkpoint", run_dir, "--prompt", prompt, "--max_new_tokens", 30)
    assert status == 0 and out.startswith(prompt) and out.endswith("\n") and "best.ckpt, step 7" in err
    assert err.count("an empty prompt: its text is the beginning of a document\n") == (prompt == "")


def test_the_prompt_comes_from_a_file_or_standard_input(run_dir, capsys, tmp_path, monkeypatch):
    path = tmp_path / "prompt.txt"
    path.write_text("über\nalles", encoding="utf-8-sig")  # a byte order mark, as of Windows, is no text
    status, out, _ = call(main, capsys, "--checkpoint", run_dir, "--prompt_file", path)
    assert status == 0 and out.startswith("über\nalles")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("von Stdin ü".encode())))
    status, out, _ = call(main, capsys, "--checkpoint", run_dir, "--prompt", "-")
    assert status == 0 and out.startswith("von Stdin ü")


# tests/model/test_generation.py has what each number of the sampling may be.

FILES = {
    "blank.txt": b"\n \n",
    "bytes.txt": b"one\n\xff",
    "open.jsonl": b'"one"\n{"prompt": "two"',
    "text.jsonl": b'{"text": "one"}',
    "half.jsonl": b'"one"\n"a\\ud800"',
}
MISTAKES = {
    "--temperature -1": "temperature must be at least 0",
    "--num_samples 0": "--num_samples: must be at least 1, not 0",
    "--stop ''": "--stop is empty",
    "--prompts nowhere.txt": "nowhere.txt: No such file or directory",
    "--prompts a --prompt b": "not allowed with",
    "--interactive --num_samples 2": "--interactive writes one text",
    "--greedy --temperature 0.5": "not allowed with",
    f"--seed {2**70}": "seed must lie in 0",
    f"--num_samples {10**18}": f"the memory is too small for --num_samples {10**18}",
    f"--num_samples {10**20}": f"the memory is too small for --num_samples {10**20}",
    "--device toaster": "--device toaster",
    "--device meta": "--device meta is not available here",
    "--prompt \udcff": "--prompt is not UTF-8 text: byte 0 is 0xff",
    "--max-new-tokens 3": "--max-new-tokens",
    "--checkpoint nowhere": "there is no nowhere",
    "--checkpoint .": ". is not a run folder with checkpoints/best.ckpt or checkpoints/last.ckpt",
    "--prompts blank.txt": "blank.txt has no prompt",
    "--prompts bytes.txt": "bytes.txt is not UTF-8 text: byte 4 is 0xff",
    "--prompts open.jsonl": "line 2 of",
    "--prompts text.jsonl": 'is neither a string nor an object with a "prompt"',
    "--prompts half.jsonl": "line 2 of",
}


@pytest.mark.parametrize("typed", MISTAKES, ids=ascii)
def test_a_mistake_gets_one_sentence(run_dir, capsys, here, typed):
    for name, content in FILES.items():
        Path(name).write_bytes(content)
    assert MISTAKES[typed] in refused(main, capsys, "--checkpoint", run_dir, *shlex.split(typed))


def test_weights_in_8_bits_write_on_the_cpu_only(run_dir, capsys, monkeypatch):
    options = ("--checkpoint", run_dir, "--dtype", "int8", "--prompt", "a", "--max_new_tokens", 5, "--seed", 1)
    status, out, err = call(main, capsys, *options, "--logprobs", "--device", "cpu")
    exact = call(main, capsys, *options, "--logprobs", "--dtype", "float32", "--device", "cpu")[1]
    assert (status, out != exact, len(json.loads(out)["tokens"])) == (0, True, 5)
    monkeypatch.setattr("scripts.generate.choose_device", torch.device)
    status, _, err = call(main, capsys, *options, "--device", "cuda:0")
    assert status == 2 and "--dtype int8 is for the CPU, and this is cuda:0" in err


def test_a_model_that_has_nothing_to_round_to_8_bits_says_so(tmp_path, capsys):
    narrow = GPTConfig(vocab_size=257, num_layers=1, num_heads=1, embed_dim=12, feed_forward_dim=24)
    save_checkpoint(tmp_path / "narrow.ckpt", random_gpt(narrow))
    said = refused(main, capsys, "--checkpoint", tmp_path / "narrow.ckpt", "--dtype", "int8", "--device", "cpu")
    assert "no layer has a width that 16 divides" in said


PROMPTS = ["a", "def f(x):", "tell me what is longer than the context", "né", "a", "  b", "c", "try"]


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.jsonl"])
@pytest.mark.parametrize("options", [("--greedy",), ("--seed", 3, "--num_samples", 2)], ids=str)
def test_each_prompt_of_a_file_is_continued_as_it_would_be_alone(run_dir, capsys, tmp_path, name, options):
    """Blank lines are skipped and named."""
    lines = [json.dumps({"prompt": prompt}) for prompt in PROMPTS] if name.endswith("l") else PROMPTS
    (tmp_path / name).write_bytes("\r\n".join(["", *lines[:2], "", *lines[2:], " \n"]).encode())
    common = ("--checkpoint", run_dir, "--max_new_tokens", 30, "--json", *options)
    _, together, err = call(main, capsys, *common, "--prompts", tmp_path / name)
    assert err.count(f"{tmp_path / name}: skipped blank lines 1, 4, 11\n") == 1
    alone = "".join(call(main, capsys, *common, "--prompt", prompt)[1] for prompt in PROMPTS)
    assert together == alone
    samples = 2 if "--num_samples" in options else 1
    assert [json.loads(line)["prompt"] for line in together.splitlines()][::samples] == PROMPTS


def test_prompts_of_equal_length_are_continued_together_and_written_in_order(run_dir, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.generate.PROMPTS_AT_ONCE", 2)
    shapes = []
    before_call(monkeypatch.setattr, GPT, "features", lambda self, x, **_: shapes.append(tuple(x.shape)))
    prompts = ["a", "bcd", "e", "fgh", "i", "jklmn", ""]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)), encoding="utf-8")
    options = ("--checkpoint", run_dir, "--prompts", tmp_path / "prompts.jsonl", "--max_new_tokens", 1, "--greedy")
    status, out, err = call(main, capsys, *options)
    assert status == 0 and err.count("step 7") == 1 and "7 tokens in" in err
    assert shapes == [(2, 1), (2, 3), (2, 1), (1, 5)]
    parts = out.split("--- prompt ")[1:]
    assert [part[: part.index("\n") + 1 + len(prompt)] for part, prompt in zip(parts, prompts, strict=True)] == [
        f"{number} ---\n{prompt}" for number, prompt in enumerate(prompts, start=1)
    ]


def test_a_text_ends_where_the_model_ends_it_or_before_a_stop(tmp_path, capsys):
    ending = save_favourite(tmp_path / "ending", [*b"ab", 256])
    assert call(main, capsys, "--checkpoint", ending, "--temperature", 0, "--prompt", "a")[1] == "ab\n"
    cut = ("--checkpoint", save_favourite(tmp_path / "cut", "aé".encode()), "--greedy", "--prompt", "a")
    assert call(main, capsys, *cut, "--max_new_tokens", 1)[1] == "a\N{REPLACEMENT CHARACTER}\n"  # within a character
    run_dir = save_favourite(tmp_path / "run", b"abcde.\n")
    options = ("--checkpoint", run_dir, "--greedy", "--prompt", "ab", "--max_new_tokens", 9)
    status, out, err = call(main, capsys, *options, "--stop", "e.", "--stop", "zz")
    assert (status, out) == (0, "abcd\n") and "no --stop" not in err and "4 tokens in" in err
    record = json.loads(call(main, capsys, *options, "--stop", "e.", "--json")[1])
    assert record == {"prompt": "ab", "sample": 1, "text": "cd", "ended": "stop", "new_tokens": 4}
    status, out, err = call(main, capsys, *options, "--stop", "zz")
    assert (status, out) == (0, "abcde.\nabcd\n")
    assert err.count("no --stop text came in the text within 9 tokens\n") == 1
    err = call(main, capsys, *options, "--stop", "zz", "--num_samples", 2)[2]
    assert "no --stop text came in 2 of 2 texts within 9 tokens" in err


@torch.no_grad()
def test_json_lines_with_the_log_probability_of_each_token(run_dir, capsys):
    """It is the model's, before any option."""
    options = ("--checkpoint", run_dir, "--prompt", "ab", "--max_new_tokens", 6, "--num_samples", 2, "--seed", 1)
    options += ("--temperature", 1.5, "--top_k", 40, "--repetition_penalty", 2)
    plain = call(main, capsys, *options)[1]
    lines = [json.loads(line) for line in call(main, capsys, *options, "--logprobs")[1].splitlines()]
    assert lines[0]["text"] != lines[1]["text"]
    gpt, _ = load_gpt(run_dir / "checkpoints" / "best.ckpt")
    for number, line in enumerate(lines, start=1):
        assert f"--- sample {number} ---\nab{line['text']}\n" in plain
        assert (line["sample"], line["ended"], line["new_tokens"]) == (number, "length", 6)
        text = torch.tensor([[*b"ab", *(token["id"] for token in line["tokens"])]])
        expected = gpt(text)[0].log_softmax(-1)[:-1].gather(-1, text[0, 1:, None])[1:, 0]
        assert [token["logprob"] for token in line["tokens"]] == pytest.approx(expected.tolist(), abs=1e-4)
        for token in line["tokens"]:
            assert token["text"] == byte_level().label(token["id"])


def test_typed_turns_continue_one_text_and_read_only_what_is_new(run_dir, capsys, monkeypatch):
    lengths = []
    before_call(monkeypatch.setattr, GPT, "features", lambda self, x, **_: lengths.append(x.shape[1]))
    typed = io.TextIOWrapper(io.BytesIO("\nab\\\nc\n\né".encode()))
    monkeypatch.setattr(sys, "stdin", typed)
    options = ("--checkpoint", run_dir, "--greedy", "--max_new_tokens", 2)
    status, out, err = call(main, capsys, *options, "--interactive")
    assert status == 0 and err.count("2 tokens in") == 4
    assert lengths == [1, 1, 1 + 4, 1, 1, 1, 1 + 2, 1]  # end-of-text first, later the last token of the turn before
    gpt, _ = load_gpt(run_dir / "checkpoints" / "best.ckpt")
    text, written = [], b""
    for turn in (b"", b"ab\nc", b"", "é".encode()):
        text += list(turn) if text else [256]
        whole = generate(gpt, torch.tensor([text]), 2, temperature=0)[0].tolist()
        written += bytes(whole[-2:]) + b"\n"
        text = whole
    assert out == written.decode(errors="replace")


def test_the_line_break_that_sends_a_turn_is_not_read_and_one_after_a_backslash_is(run_dir, capsys, monkeypatch):
    options = ("--checkpoint", run_dir, "--greedy", "--max_new_tokens", 9)
    for typed, prompt in (("ab\n", "ab"), ("ab", "ab"), ("ab\\\n\n", "ab\n"), ("a\\\n\\\nb\n", "a\n\nb")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        text = call(main, capsys, *options, "--interactive")[1]
        assert prompt + text == call(main, capsys, *options, "--prompt", prompt)[1], repr(typed)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # as in a UTF-8 locale, and as in C's
def test_typed_bytes_that_are_not_text_get_one_sentence(run_dir, capsys, monkeypatch, errors):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\n"), encoding="utf-8", errors=errors))
    status, out, err = call(main, capsys, "--checkpoint", run_dir, "--interactive")
    assert (status, out) == (2, "") and err.endswith("generate.py: standard input is not UTF-8 text\n")


@pytest.mark.parametrize("option", ["--prompt=-", "--interactive", "--prompt=a"])
def test_a_closed_stream_gets_one_sentence(run_dir, capsys, monkeypatch, option):
    stream, said = ("stdout", "output is closed") if option == "--prompt=a" else ("stdin", "input, which is closed")
    monkeypatch.setattr(sys, stream, None)  # as Python has it after <&- or >&-
    assert f"standard {said}" in refused(main, capsys, "--checkpoint", run_dir, option)


def test_as_a_program_it_imports_nothing_that_only_training_needs(run_dir):
    code = "import runpy, sys; sys.modules |= dict.fromkeys(['lightning', 'datasets', 'wandb', 'matplotlib']); "
    code += "runpy.run_module('scripts.generate', run_name='__main__')"
    command = [sys.executable, "-c", code, "--checkpoint", str(run_dir), "--max_new_tokens=3"]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
