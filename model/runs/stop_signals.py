"""How a signal stops a run: after the current step, once a checkpoint is saved."""

import logging
import signal
from typing import Any

log = logging.getLogger(__name__)
STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if hasattr(signal, "SIGUSR1"):  # Windows has none. Slurm sends it before a job's time ends: sbatch --signal=USR1@90
    STOP_SIGNALS.append(signal.SIGUSR1)


class TrainingInterrupted(BaseException):
    """Raised with a signal at the end of a step, after the checkpoint is saved, to stop training because of it.

    It is no error, so no `Exception`, as KeyboardInterrupt is none.
    """


class StopSignals:
    """Notes the first of STOP_SIGNALS, then restores the earlier handlers, which handle a second one."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.handlers: dict[int, Any] = {}  # the handlers that `install` has replaced

    def install(self) -> None:
        for signum in STOP_SIGNALS:
            self.handlers[signum] = signal.signal(signum, self._note)

    def remove(self) -> None:
        while self.handlers:
            signal.signal(*self.handlers.popitem())

    def _note(self, signum: int, frame: Any) -> None:
        self.received = signal.Signals(signum)
        self.remove()
        log.warning("Stopping after this step, to save a checkpoint; press Ctrl-C again to stop at once.")
