"""What a run is made of, and whom it talks to: requirements.lock is whole, and a run opens no connection."""

import re
import socket

import pytest

from tests.small_runs import REPOSITORY


def pinned(name: str) -> set[str]:
    """The name==version of each line, without extras and markers."""
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    found = [re.match(r"([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", line) for line in lines]
    return {f"{match[1].lower().replace('_', '-')}=={match[2]}" for match in found if match}


def test_the_lock_file_has_every_requirement_with_hashes():
    """After a change of a version, make lock."""
    locked = pinned("requirements.lock")
    for name in ("requirements.txt", "requirements-dev.txt"):
        assert pinned(name) and pinned(name) <= locked
    entries = re.split(r"\n(?=\S)", (REPOSITORY / "requirements.lock").read_text(encoding="utf-8").strip())
    assert len([entry for entry in entries if "==" in entry]) > 100
    for entry in entries:
        assert "--hash=sha256:" in entry, entry


@pytest.mark.slow
def test_a_run_attempts_no_connection(train, monkeypatch):
    """In this process; tests/stress/network.py watches those that it starts too."""
    attempts = []

    def refused(*address, **_):
        attempts.append(address)
        raise OSError("the network is off")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    assert train("--name=quiet") == 0
    assert attempts == []
