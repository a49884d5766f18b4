"""A run resumed with another option: every option that may change, beside an uninterrupted run."""

import shutil
from pathlib import Path

import pytest

from model.checkpoint import read_checkpoint
from model.runs.code import read_code
from tests.small_runs import assert_same, column, final_state

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_pages")]

# Resumed after step 6, in the middle of an epoch and of a row, before the learning rate decays.
BEGUN_WITH = """--trainer.max_steps=8 --trainer.log_every_n_steps=4 --trainer.accumulate_grad_batches=2
    --trainer.limit_val_batches=2 --checkpoints.keep_steps=[6] --recording.enabled=false --samples.max_new_tokens=0
    --model.schedule.warmup_steps=0 --model.schedule.decay_fraction=0.2 --model.gpt.dropout=0.1"""
# The run goes on as if nothing had changed, bit for bit. The options of a line are tried together.
SAME = """wandb=disabled other_code code_difference=false
    trainer.accelerator=cpu trainer.strategy=auto trainer.devices=1 trainer.num_nodes=1
    trainer.logger=true trainer.max_time=00:01:00:00 trainer.enable_progress_bar=false trainer.deterministic=true
    trainer.gradient_clip_algorithm=norm trainer.benchmark=false trainer.profiler=simple trainer.detect_anomaly=true
    trainer.default_root_dir=elsewhere trainer.callbacks+=Timer model.gpt.init=gpt2 model.compile=false
    model.schedule.warmup_steps=2 model.schedule.final_factor=0.0 data.cache_dir=other
    data.repeat_from=1 data.repeat_until=9 checkpoints.every_n_steps=1 checkpoints.keep_steps=[7]
    recording.enabled=true recording.probe_tokens=7 recording.probe_text=another recording.every_n_steps=2
    samples.max_new_tokens=2 samples.prompt=a samples.temperature=0.5 samples.top_k=2
    model.optimizer.table_learning_rate=0.2 model.optimizer.vector_learning_rate=0.01"""
# The rows are of the same steps, and their training losses lie near those of the uninterrupted run.
NEAR = """seed_everything=7 trainer.precision=bf16-mixed trainer.accumulate_grad_batches=8
    trainer.gradient_clip_val=0.5 model.gpt.dropout=0.2 model.optimizer.learning_rate=0.02
    model.optimizer.lm_head_learning_rate=0.002 model.optimizer.matrix_learning_rate=0.01
    model.optimizer.weight_decay=0.1 model.optimizer.betas=[0.9,0.99]
    model.optimizer.epsilon=1e-6 model.optimizer.rate_scale=0.5 model.optimizer.momentum=0.9 model.schedule.decay=none
    model.schedule.decay_fraction=0.5 data.batch_size=16 data.repeat_fraction=0.1 data.random_repeat_fraction=0.1"""
# These validate on another text, or on another part of it: only losses of the same text can be the best.
OTHER_VALIDATION = """trainer.limit_val_batches=1 data.validation_batch_size=2 data.files=other.txt data.max_tokens=2000
    data.validation_files=other.txt data.validation_fraction=0.2 data.document_masking=true"""
# These change when something is done: the steps of the rows, and of the validations.
OTHER_CLOCKS = {
    "trainer.max_steps=9": ([4, 8, 9], [4, 8, 9]),
    "trainer.val_check_interval=7": ([4, 7, 8], [4, 7, 8]),
    "trainer.log_every_n_steps=7": ([4, 7, 8], [4, 8]),
}
CHANGES = [*SAME.splitlines(), *NEAR.split(), *OTHER_VALIDATION.split(), *OTHER_CLOCKS]
# Refused, of no use, or the source of the text, for which data.files stands.
NOT_CHANGED = """name resume resume_or_start config print_config model.init_from model.optimizer.algorithm
    data.corpus data.tokenizer data.vocab_size data.dataset data.dataset_config data.dataset_split
    data.dataset_validation_split data.dataset_revision data.text_column data.quotes data.streaming"""


def test_every_option_of_a_run_has_its_place_above(parser):
    """Of the network's options only dropout and init may change; tests/test_train_mistakes.py has another."""
    options = {name for name, _ in parser.get_defaults().items() if not name.startswith("model.gpt.")}
    options |= {"model.gpt.dropout", "model.gpt.init"}
    named = " ".join([*CHANGES, NOT_CHANGED]).split()
    assert options == {option.partition("=")[0].rstrip("+") for option in named}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_resumed_with_another_option_continues_all_that_was_saved(train, trained, caplog, change):
    whole = trained(*BEGUN_WITH.split())
    Path("other.txt").write_text("".join(map(chr, range(33, 127))) * 90)  # harder to predict
    shutil.copytree(whole, "runs/run")
    shutil.copy("runs/run/checkpoints/step_00000006.ckpt", "runs/run/checkpoints/best.ckpt")  # else it would be removed
    changed = [f"--{option}" for option in change.split()]
    assert train("--resume=runs/run/checkpoints/step_00000006.ckpt", *changed) == 0
    before, after = column(whole, "train/loss"), column("runs/run", "train/loss")
    validated, best = column("runs/run", "val/loss"), read_checkpoint(Path("runs/run/checkpoints/best.ckpt"))
    if change in SAME:
        assert_same(final_state(whole), final_state("runs/run"))
        for name in ("tokens", "train/loss", "val/loss", "lr"):
            assert column(whole, name) == column("runs/run", name)
    assert ([*after], [*validated]) == OTHER_CLOCKS.get(change, ([4, 8], [4, 8]))
    assert after[8] == pytest.approx(before[8], rel=0.3)
    if change in NEAR:
        assert len({start["options"] for start in read_code(Path("runs/run"))}) == 2  # no seed of the same variant
        assert validated[8] != column(whole, "val/loss")[8]
    if change == "data.files=other.txt":
        assert "training text has changed" in caplog.text
    if change in OTHER_VALIDATION:
        assert "best.ckpt" in caplog.text
        validated = {8: validated[8]}
    assert best["global_step"] == min(validated, key=validated.get)
