"""The signals that stop a run."""

import signal

import pytest

from model.runs.stop_signals import STOP_SIGNALS, StopSignals

HANDLERS = [lambda *_: None for _ in STOP_SIGNALS]


def handlers():
    return [signal.getsignal(signum) for signum in STOP_SIGNALS]


@pytest.fixture
def signals():
    """StopSignals, installed over handlers of this test's."""
    before = handlers()
    for signum, handler in zip(STOP_SIGNALS, HANDLERS, strict=True):
        signal.signal(signum, handler)
    signals = StopSignals()
    signals.install()
    yield signals
    signals.remove()
    for signum, handler in zip(STOP_SIGNALS, before, strict=True):
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", STOP_SIGNALS)
def test_the_first_signal_is_noted_and_the_next_goes_to_the_earlier_handler(signals, caplog, signum):
    assert signals.received is None and not set(handlers()) & set(HANDLERS)
    signal.raise_signal(signum)
    assert signals.received == signum and "Ctrl-C again" in caplog.text
    assert handlers() == HANDLERS
    signals.remove()
    assert handlers() == HANDLERS
