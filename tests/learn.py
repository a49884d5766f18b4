"""It learns, `make learn`: with two seeds heads form and the loss falls in configs/induction.yaml as README says."""

import random
import string

import pytest
import torch
import torch.nn.functional as F

from model.checkpoint import load_gpt
from tests.attentions import maps_of_attend
from tests.small_runs import REPOSITORY
from train import main

STEPS = (250, 700, 1500)
# Neither recorded nor shown, which takes half of the time and changes no weight.
QUICK = ["--attention.enabled=false", "--samples.max_new_tokens=0", "--trainer.val_check_interval=250", "--name=run"]
QUICK += [f"--checkpoints.keep_steps={list(STEPS)}", "--wandb=disabled", "--data.cache_dir=cache"]


def repeated_rows(length: int = 24, rows: int = 256) -> torch.Tensor:
    """(rows, 1 + 2 length): an end of text and random letters, twice."""
    draw, letters = random.Random(0), (string.ascii_letters + string.digits).encode()
    return torch.tensor([[256, *2 * draw.sample(letters, length)] for _ in range(rows)])


@torch.no_grad()
def measured(path: str) -> dict[str, float]:
    """The loss in nats of a letter of each copy, and the weights of the best head on two places from the second copy.

    previous: the letter before; induction: the letter that followed the same letter in the first copy.
    """
    gpt, _ = load_gpt(path)
    tokens, (rows, T) = repeated_rows(), repeated_rows().shape
    half, queries = T // 2, torch.arange(T // 2 + 1, T - 1)
    with pytest.MonkeyPatch.context() as patch:
        maps = maps_of_attend(patch.setattr)
        logits = gpt(tokens[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(rows, T - 1)
    best = [layer.mean(0)[:, queries] for layer in maps]  # (H, queries, T - 1) each
    return {
        "first copy": losses[:, :half].mean().item(),
        "second copy": losses[:, half + 1 :].mean().item(),  # but for its first letter, which nothing foretells
        "previous": best[0][:, range(len(queries)), queries - 1].mean(-1).max().item(),
        "induction": best[1][:, range(len(queries)), queries - half + 1].mean(-1).max().item(),
    }


@pytest.mark.parametrize("seed", [1337, 1])
def test_heads_form_and_the_loss_of_repeated_letters_falls(seed, here, capsys):
    assert main([f"--config={REPOSITORY}/configs/induction.yaml", f"--seed_everything={seed}", *QUICK]) == 0
    steps = {step: measured(f"runs/run/checkpoints/step_{step:08d}.ckpt") for step in STEPS}
    with capsys.disabled():
        for step, found in steps.items():
            figures = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
            print(f"\nseed {seed}, step {step}: {figures}")
    early, formed, last = steps.values()
    assert max(early["previous"], early["induction"]) < 0.3
    assert min(formed["previous"], formed["induction"]) > 0.5
    assert early["second copy"] > 3 and last["second copy"] < 0.3
    assert last["first copy"] > 4  # ln 62 = 4.13: nothing foretells random letters
