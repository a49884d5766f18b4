"""The default run opens no connection, neither the program nor the service that wandb starts."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.small_runs import REPOSITORY

SHORT = """--trainer.max_steps=4 --trainer.val_check_interval=2 --trainer.limit_val_batches=1 --model.gpt.num_layers=2
    --model.gpt.embed_dim=48 --data.max_tokens=200000 --samples.max_new_tokens=5 --recording.probe_tokens=8"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_default_run_attempts_no_connection(tmp_path):
    """Checks every call of all its processes that names an address; local sockets have none."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "GLASSGPT_CACHE": str(tmp_path / "cache")}
    watch = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", "calls"]
    command = [*watch, sys.executable, str(REPOSITORY / "train.py"), "--name=quiet", *SHORT.split()]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert list((tmp_path / "runs/quiet/wandb").glob("offline-run-*"))  # wandb's service has run
    calls = (tmp_path / "calls").read_text(errors="replace").splitlines()
    addressed = [call for call in calls if re.search(r"sa_family=AF_INET", call)]
    assert [call for call in addressed if not re.search(r"127\.0\.0\.1|::1", call)] == []
