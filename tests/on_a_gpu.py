"""Trains, resumes and uses runs on this machine's GPU, or on the pretended GPU with which test_device.py starts this.

`make gpu` runs this; without a GPU, on the processor.
"""

import os
from dataclasses import replace

import pytest
import torch

from model import open_run
from model.gpt import GPT
from model.training.optimizer import OptimizerConfig, build_optimizer
from scripts import evaluate, generate, inspect_attention
from tests.gpts import CONFIGS, loss_of
from tests.small_runs import assert_same, final_state

DEVICE = torch.accelerator.current_accelerator() or torch.device("cpu")
IS_PRETENDED = "PRETENDED_GPU" in os.environ
COMPILED = "--model.compile=false" if IS_PRETENDED else "--model.compile=auto"
RUNS = {
    "tables and documents": """--model.gpt.ngram_sizes=[2,3] --model.gpt.ngram_buckets=64 --model.compile=false
        --model.gpt.value_embeddings=true --data.document_masking=true --model.gpt.dropout=0.1
        --trainer.accumulate_grad_batches=2 --trainer.deterministic=true --trainer.precision=bf16-mixed
        --model.gpt.num_heads=4 --model.gpt.num_kv_heads=2 --model.gpt.window=5""",
    "compiled": f"""{COMPILED} --model.gpt.num_heads=4 --model.gpt.num_kv_heads=2 --model.gpt.window=5
        --trainer.gradient_clip_val=1.0 --trainer.precision=bf16-mixed --trainer.deterministic=true""",
    "GPT-2": f"""{COMPILED} --model.gpt.position=learned --model.gpt.norm=layernorm --model.gpt.tie_embeddings=true
        --model.optimizer.algorithm=adamw --trainer.precision=16-mixed --model.gpt.activation=swiglu""",
}


QUIET = "--recording.enabled=false --samples.max_new_tokens=0"
# A pretended GPU takes a hundred times as long for an operation as its arithmetic does, so it records the last step
# only. A real one also replays graphs, between recordings too.
STEPS, FEW, FIRST = 4, "", ""
if IS_PRETENDED:
    STEPS, FEW, FIRST = 1, "--model.gpt.num_layers=1 --trainer.limit_val_batches=1", QUIET


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_run_is_trained_resumed_and_used(options, train, small_text):
    options += f" {FEW} --trainer.accelerator={DEVICE.type} --trainer.val_check_interval={STEPS}"
    options, spoken = options.split(), ["--recording.enabled=true", "--samples.max_new_tokens=2"]
    assert train("--name=run", f"--trainer.max_steps={STEPS}", *options, *FIRST.split()) == 0
    assert train("--resume=runs/run", f"--trainer.max_steps={2 * STEPS}", *spoken) == 0
    if "--trainer.deterministic=true" in options:
        assert train("--name=whole", f"--trainer.max_steps={2 * STEPS}", *options, *QUIET.split()) == 0
        assert_same(final_state("runs/run"), final_state("runs/whole"))
    assert not generate.main(["--max_new_tokens=3", "--num_samples=2", "--top_k=5", "--top_p=0.9", "--min_p=0.1"])
    assert not evaluate.main([f"--data.files={small_text}", "--split=validation"])
    assert not inspect_attention.main(["--prompt=the model", "--output=page.html"])
    glass = open_run("runs/run", device=DEVICE)
    maps_on_cpu = open_run("runs/run", device="cpu").read("the model").maps
    torch.testing.assert_close(glass.read("the model").maps, maps_on_cpu, rtol=0, atol=1e-5)
    assert glass.read("the model", without=["head 0.0"]).loss > 0
    assert glass.ablate("the model reads")


def count_of_step(config, **options):
    """Counts the operations and waits of the second of two training steps on a pretended GPU."""
    from tests.pretended_gpu import counts

    gpt = GPT(replace(config, dropout=0.1)).to(DEVICE)
    optimizer = build_optimizer(gpt, OptimizerConfig(weight_decay=0.1, **options))
    tokens = torch.zeros(3, 12, dtype=torch.long, device=DEVICE)
    for _ in range(2):
        before = counts.copy()
        loss_of(gpt, tokens, tokens, tokens).backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return counts - before


@pytest.mark.skipif(not IS_PRETENDED, reason="a real GPU does not count")
def test_a_step_never_waits_for_the_device_and_muon_takes_as_many_operations_for_any_number_of_layers():
    extra = []
    for layers in (1, 2):
        sizes = {"num_layers": layers, "num_kv_heads": 2, "ngram_sizes": [2], "activation": "swiglu", "window": 3}
        muon, adamw = (count_of_step(replace(CONFIGS["modern"], **sizes), algorithm=name) for name in ("muon", "adamw"))
        assert muon["waits"] == adamw["waits"] == 0
        assert adamw["operations"] < 200 * layers + 100
        extra.append(muon["operations"] - adamw["operations"])
    assert 0 < extra[0] == extra[1]
