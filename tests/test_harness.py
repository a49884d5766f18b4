"""The GPT in lm-evaluation-harness: its answers are those of the model, also in a task. Skipped without the harness."""

import json

import pytest
import torch

from data.tokenizers import byte_level
from model.generation import generate
from model.gpt import GPTConfig
from tests.checkpoints import save_checkpoint
from tests.gpts import random_gpt

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance

from scripts.evaluate import main
from scripts.harness import HarnessGPT

CONFIG = GPTConfig(vocab_size=257, context_length=16, num_layers=2, num_heads=2, embed_dim=32)


def requests(kind, *arguments):
    return [Instance(kind, {}, part, 0) for part in arguments]


@torch.no_grad()
def log_probability(gpt, context: bytes, continuation: bytes):
    """Of the continuation, token after token, each after as much as fits; and whether each is the likeliest."""
    text, total, greedy = [256, *context, *continuation] if not context else [*context, *continuation], 0.0, True
    for place in range(len(text) - len(continuation), len(text)):
        logprobs = gpt(torch.tensor([text[max(0, len(text) - 17) : place]]))[0, -1].double().log_softmax(-1)
        total += float(logprobs[text[place]])
        greedy &= int(logprobs.argmax()) == text[place]
    return total, greedy


@torch.no_grad()
def test_log_likelihoods_are_those_of_the_model():
    gpt = random_gpt(CONFIG)
    following = {letter: int(gpt(torch.tensor([[ord(letter)]]))[0, 0].argmax()) for letter in "abcdefghijklmnop"}
    letter, likeliest = next((letter, token) for letter, token in following.items() if 32 < token < 127)
    pairs = [("", "abc"), ("hello", " world"), ("a text that does not fit", " at all"), ("x", "é"), ("abc", "d")]
    pairs.append((letter, chr(likeliest)))
    answers = HarnessGPT(gpt, byte_level(), batch_size=2).loglikelihood(requests("loglikelihood", *pairs))
    for (context, continuation), (logprob, is_greedy) in zip(pairs, answers, strict=True):
        expected, greedy = log_probability(gpt, context.encode(), continuation.encode())
        assert logprob == pytest.approx(expected, abs=1e-4) and is_greedy == greedy
    assert answers[-1][1]


def test_whole_texts_are_scored_in_pieces():
    gpt, text = random_gpt(CONFIG), "a text of more than 16 tokens"
    model = HarnessGPT(gpt, byte_level())
    answers = model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,), ("",)))
    tokens = text.encode()
    first = log_probability(gpt, b"", tokens[:16])[0]
    assert answers == [pytest.approx(first + log_probability(gpt, tokens[:16], tokens[16:])[0], abs=1e-4), 0.0]


def test_texts_end_before_until():
    gpt = random_gpt(CONFIG)
    model, tokens = HarnessGPT(gpt, byte_level()), generate(gpt, torch.tensor([[*b"abc"]]), 9, temperature=0)[0, 3:]
    text = byte_level().decode(tokens.tolist())
    options = {"max_gen_toks": 9, "do_sample": False}
    answers = model.generate_until(
        requests("generate_until", ("abc", {"until": [text[4]]} | options), ("abc", {"until": "no such end"} | options))
    )
    assert answers == [text[: text.index(text[4])], text]


@pytest.mark.slow
def test_a_task_of_ones_own(tmp_path, capsys):
    gpt = random_gpt(CONFIG)
    save_checkpoint(tmp_path / "run" / "checkpoints" / "best.ckpt", gpt)
    choices = [" x", " yes", " no!"]
    likeliest = max(range(3), key=lambda index: log_probability(gpt, b"Is it", choices[index].encode())[0])
    rows = [{"q": "Is it", "choices": choices, "answer": answer} for answer in (likeliest, (likeliest + 1) % 3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text(f"""
task: mine
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "rows.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
""")
    options = ["--checkpoint", str(tmp_path / "run"), "--include_path", str(tmp_path), "--tasks"]
    assert main([*options, "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mine"]["acc,none"] == 0.5
    assert main([*options, "mine,other"]) == 2
    assert "--tasks other: lm-evaluation-harness has no such task" in capsys.readouterr().err
