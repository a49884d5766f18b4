"""`make learn`: what README says about training configs/induction.yaml and the default run holds for two seeds."""

import random
import string

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data.datamodule import TextDataModule
from model.checkpoint import load_gpt
from model.generation import generate
from model.gpt import GPT
from model.inspection.maps import weights_of
from model.inspection.passes import observed
from tests.small_runs import REPOSITORY, metrics
from train import main

STEPS = (250, 700, 1500)
# Records nothing and writes no samples, which would take half of the time and changes no weight.
QUICK = ["--recording.enabled=false", "--samples.max_new_tokens=0", "--name=run"]
QUICK += ["--wandb=disabled", "--data.cache_dir=cache"]
WATCHED = ["--trainer.val_check_interval=250", f"--checkpoints.keep_steps={list(STEPS)}"]
PERIODS = (16, 31, 50)  # tokens after which text repeats itself


def repeated_rows(length: int = 24, rows: int = 256) -> torch.Tensor:
    """An end of text and random letters, twice, (rows, 1 + 2 length)."""
    draw, letters = random.Random(0), (string.ascii_letters + string.digits).encode()
    return torch.tensor([[256, *2 * draw.sample(letters, length)] for _ in range(rows)])


@torch.no_grad()
def watched(gpt: GPT, tokens: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Returns the logits, and the weights (N, H, T, T) of each layer."""
    with observed(gpt) as calls:
        return gpt(tokens), [weights_of(call) for call in calls]


def measured(path: str) -> dict[str, float]:
    """The loss in nats per letter of each copy, and the weight of the best head on two keys from the second copy.

    The keys are previous: the letter before; induction: the letter that followed the same letter in the first copy.
    """
    gpt, _ = load_gpt(path)
    tokens, (rows, T) = repeated_rows(), repeated_rows().shape
    half, queries = T // 2, torch.arange(T // 2 + 1, T - 1)
    logits, maps = watched(gpt, tokens[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(rows, T - 1)
    best = [layer.mean(0)[:, queries] for layer in maps]  # (H, queries, T - 1) each
    return {
        "first copy": losses[:, :half].mean().item(),
        "second copy": losses[:, half + 1 :].mean().item(),  # without its first letter, which nothing predicts
        "previous": best[0][:, range(len(queries)), queries - 1].mean(-1).max().item(),
        "induction": best[1][:, range(len(queries)), queries - half + 1].mean(-1).max().item(),
    }


@pytest.mark.parametrize("seed", [1337, 1])
def test_heads_form_and_the_loss_of_repeated_letters_falls(seed, here, capsys):
    assert main([f"--config={REPOSITORY}/configs/induction.yaml", f"--seed_everything={seed}", *QUICK, *WATCHED]) == 0
    steps = {step: measured(f"runs/run/checkpoints/step_{step:08d}.ckpt") for step in STEPS}
    with capsys.disabled():
        for step, found in steps.items():
            figures = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
            print(f"\nseed {seed}, step {step}: {figures}")
    early, formed, last = steps.values()
    assert max(early["previous"], early["induction"]) < 0.3
    assert min(formed["previous"], formed["induction"]) > 0.5
    assert early["second copy"] > 3 and last["second copy"] < 0.3
    assert last["first copy"] > 4  # ln 62 = 4.13: nothing predicts random letters


def best_weight(gpt: GPT, tokens: torch.Tensor, keys: torch.Tensor) -> float:
    """The largest weight of any head on `keys` (N, T, T), averaged over the queries in the second half of tokens."""
    queries = torch.arange(tokens.shape[1] // 2, tokens.shape[1])
    _, maps = watched(gpt, tokens)
    weights = [(layer * keys[:, None]).sum(-1)[..., queries].mean((0, 2)) for layer in maps]  # (H,) each
    return torch.cat(weights).max().item()


def repeated_share(tokens: list[int], length: int = 4) -> float:
    """The share of the sequences of `length` tokens that occur earlier in the same text."""
    runs = list(zip(*(tokens[start:] for start in range(length)), strict=False))
    return 1 - len(set(runs)) / len(runs)


@pytest.mark.parametrize("seed", [1337, 1])
def test_the_default_run_forms_its_heads_and_writes_text_that_hardly_repeats_itself(seed, here, capsys):
    """Measured on 16 windows of each kind, which training does not use, and on 32 texts."""
    assert main([f"--seed_everything={seed}", *QUICK]) == 0
    gpt, _ = load_gpt("runs/run")
    data = TextDataModule(cache_dir="cache")
    data.setup()
    validation, T = data.tokenized.validation, gpt.config.context_length
    back = torch.arange(T)[:, None] - torch.arange(T)

    starts = [7 + place * (validation.num_tokens - 2 * T) // 16 for place in range(16)]
    text = torch.from_numpy(np.stack([validation.read(start, T) for start in starts]).astype(np.int64))
    found = {"previous": best_weight(gpt, text, (back == 1).expand(16, T, T))}
    candidates = torch.from_numpy(np.unique(validation.read(0, 20_000)).astype(np.int64))
    draw = torch.Generator().manual_seed(3)
    for period in PERIODS:
        orders = [torch.randperm(len(candidates), generator=draw)[:period] for _ in range(16)]
        repeated = torch.stack([candidates[order][torch.arange(T) % period] for order in orders])
        keys = (back > 0) & ((back + 1) % period == 0)  # the token after the same token
        found[f"induction at {period}"] = best_weight(gpt, repeated, keys.expand(16, T, T))

    prompts = torch.tensor([data.tokenizer.encode("def")]).expand(32, -1)
    texts = generate(gpt, prompts, 150, temperature=0.8, top_k=50, generator=torch.Generator().manual_seed(5))
    found["repeated"] = float(np.mean([repeated_share(tokens) for tokens in texts.tolist()]))
    [*_, found["bits per byte"]] = [float(row["val/bits_per_byte"]) for row in metrics("runs/run") if row["val/loss"]]
    with capsys.disabled():
        print(f"\nseed {seed}: {', '.join(f'{name} {value:.3f}' for name, value in found.items())}")
    # Seen for five seeds, in float32 and in bfloat16: 1.218 to 1.230 bits per byte, 0.97 to 1.00, and 0.82 or more.
    assert found["bits per byte"] < 1.25 and found["previous"] > 0.85
    assert min(found[f"induction at {period}"] for period in PERIODS) > 0.6
    # 0.25 and 0.23, plus or minus 0.04; an earlier model that repeated itself had 0.46, and real text has 0.09.
    assert found["repeated"] < 0.35
