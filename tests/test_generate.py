"""scripts/generate.py: the text for each prompt and option, and a sentence for every mistake."""

import re
from functools import partial

import pytest
import torch

from data.tokenizers import END_OF_TEXT, Tokenizer, byte_level
from model.checkpoint import load_gpt
from model.generation import generate
from scripts.generate import Continuation, main
from tests import programs
from tests.command_lines import call, check_mistakes


@pytest.fixture
def write(run_dir, capsys):
    """Calls generate.py for a random model; returns exit status, standard output and standard error."""
    return partial(call, main, capsys, "--checkpoint", run_dir)


def test_equal_seeds_give_equal_texts_samples_differ_and_greedy_text_needs_no_seed(write):
    def text(*options):
        return write("--prompt", "x", "--max_new_tokens", 40, *options)[1]

    assert text("--seed", 1) == text("--seed", 1) != text("--seed", 2)
    assert text() != text()
    for drawing in ((), ("--top_k", 9)):  # each text is the one of its own seed, however many are written at once
        _, first, second = re.split(r"--- sample \d ---\n", text("--num_samples", 2, "--seed", 1, *drawing))
        assert [first, second] == [text("--seed", 1, *drawing), text("--seed", 2, *drawing)]
    assert text("--temperature", 0) == text("--min_p", 1) == text("--top_k", 1) == text("--top_p", 1e-9)


WHOLE = Tokenizer("words", r"[\s\S]+", byte_level().ranks | {b"xab": 257}, {END_OF_TEXT: 256})
LACKING = "\N{REPLACEMENT CHARACTER}"
TEXTS = [  # tokens, stops, what becomes certain with each token and at the end
    ("é€".encode(), [], ["", "é", "", "", "€", ""]),
    (b"\xe2a\xf0", [], ["", f"{LACKING}a", "", LACKING]),
    ([97, 256, 98], [], ["a", "", "", ""]),
    (b"xENaEND?", ["END", "a!"], ["x", "", "", "EN", "a", "", "", "", ""]),
    ([*b"EENNE", 256], ["END"], ["", "E", "", "ENN", "", "E", ""]),
    ([257, 99], ["bc"], ["xa", "", ""]),  # a token covers a part of a stop
]


@pytest.mark.parametrize("tokens, stops, pieces", TEXTS)
def test_text_is_shown_when_no_later_token_can_change_it_and_ends_before_its_first_stop(tokens, stops, pieces):
    text, shown, parts = Continuation(WHOLE, stops), "", []
    for token in tokens:
        text.add(token)
        parts.append(text.certain().removeprefix(shown))
        shown += parts[-1]
    assert [*parts, text.text.removeprefix(shown)] == pieces
    assert text.has_ended == (bool(stops) or 256 in [*tokens])


@pytest.mark.parametrize("prompt", ["日本 naïve \N{GRINNING FACE}\x00", "<|endoftext|>", "x" * 100, ""], ids=ascii)
def test_any_prompt_is_continued(write, prompt):
    status, out, err = write("--prompt", prompt, "--max_new_tokens", 30)
    assert status == 0 and out.startswith(prompt) and out.endswith("\n") and "best.ckpt, step 7" in err


MISTAKES = {
    "--temperature -0.5": "temperature 0 -0.5",
    "--top_k 0": "top_k 1 0",
    "--top_p 0": "top_p 0",
    "--num_samples 0": "--num_samples 0",
    "--stop ''": "--stop",
    f"--seed {2**70}": "seed 2^53",
    f"--num_samples {10**12}": "memory --device",
    "--device toaster": "device toaster cpu",
    "--device meta": "device meta",
    "--max-new-tokens 3": "--max-new-tokens",
    "--stop -x": "--stop",
    "--checkpoint nowhere": "nowhere",
}


def test_every_mistake_gets_one_sentence(run_dir, capsys, here):
    check_mistakes(main, capsys, MISTAKES, "--checkpoint", run_dir)


def test_bfloat16_writes_what_the_model_in_bfloat16_does(write, run_dir):
    gpt = load_gpt(run_dir)[0].bfloat16()
    expected = generate(gpt, torch.tensor([list(b"ab")]), 30, temperature=0)[0]
    _, out, _ = write(
        "--prompt", "ab", "--max_new_tokens", 30, "--temperature", 0, "--device", "cpu", "--dtype", "bfloat16"
    )
    assert out == byte_level().decode(expected.tolist()) + "\n"


def test_each_text_ends_before_its_first_stop(write):
    options = ("--temperature=0", "--prompt=ab", "--max_new_tokens", 9)
    written = write(*options)[1].removeprefix("ab").removesuffix("\n")
    stop = written[3:5]
    status, out, _ = write(*options, f"--stop={stop}", "--stop=zz", "--num_samples", 2)
    assert status == 0 and out.count(f"ab{written.partition(stop)[0]}\n") == 2


def test_it_imports_nothing_that_only_training_needs(run_dir):
    """Nor sympy, which takes a second. tests/test_structure.py has what each file may import."""
    hide = "import sys; sys.modules |= dict.fromkeys('lightning datasets wandb matplotlib sympy'.split())"
    programs.run("scripts/generate.py", "--checkpoint", run_dir, "--max_new_tokens=3", before=hide)
