"""In a long run neither memory nor open files grow. STRESS=N sets the number of steps, by default 10,000."""

import csv
import os
import re
from pathlib import Path

import numpy as np
from lightning.pytorch.callbacks import Callback

STEPS = int(os.environ.get("STRESS", "10000"))


class Watch(Callback):
    """Writes the memory and the open files of this process a hundred times during the run."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step % (STEPS // 100) == 0:
            memory = int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1])
            with Path(self.path).open("a") as file:
                file.write(f"{trainer.global_step},{memory},{len(list(Path('/proc/self/fd').iterdir()))}\n")


def test_neither_memory_nor_open_files_grow(train, capsys):
    """The run also validates, samples, records, logs and saves."""
    each = STEPS // 50
    options = f"""--trainer.max_steps={STEPS} --trainer.val_check_interval={each} --recording.every_n_steps={each}
        --checkpoints.every_n_steps={each // 2} --trainer.callbacks=tests.stress.soak.Watch
        --trainer.callbacks.path=watched.csv --trainer.enable_progress_bar=false"""
    assert train(*options.split()) == 0
    with Path("watched.csv").open() as file:
        steps, memory, files = np.array([[int(x) for x in row] for row in csv.reader(file)]).T
    late = slice(len(steps) // 4, None)  # after everything has been imported or cached once
    slopes = [np.polyfit(steps[late], values[late], 1)[0] for values in (memory, files)]
    with capsys.disabled():
        print(f"\n{steps[-1]} steps: {memory[0] // 1024} to {memory[-1] // 1024} MiB, {files[0]} to {files[-1]} files")
        print(f"a step adds {1024 * slopes[0]:.1f} bytes and {slopes[1]:.6f} files")
    assert 1024 * slopes[0] < 500  # a map or a row that is kept at each step would be more
    assert files[late].max() == files[late].min()
