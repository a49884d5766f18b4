"""The fault matrix: makes everything go wrong that can, and shows that nothing is lost and no weight is silently wrong.

    make faults                     all cases
    make faults ARGS=--short        some of each, in at most four minutes
    python -m tests.faults --only kill

Each line of the table counts the cases in which all of this held: the person saw one sentence (in the last column) or
the training went on; files from before could be read; and a resumed run ended in the same bits as one that was never
disturbed, unless the person was told otherwise. Exit status 1 if a case did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.faults import damage, disk, hub, kills, training
from tests.faults.runs import Lab, end, start
from tests.small_runs import small_options, small_text

Case = Callable[[Lab], "str | tuple[str, int]"]
FAULTS: dict[str, Callable[[Lab], Iterator[tuple[str, Case]]]] = {
    "killed (SIGKILL)": partial(kills.cases, signum=signal.SIGKILL),
    "ended (SIGTERM)": partial(kills.cases, signum=signal.SIGTERM),
    "Ctrl-C (SIGINT)": partial(kills.cases, signum=signal.SIGINT),
    "disk full": disk.full_disk,
    "folder that is read-only": disk.read_only,
    "out of memory in a batch": training.out_of_memory,
    "loader process killed": training.loader_killed,
    "NaN or infinite weights": training.diverges,
    "clock that jumps": training.clock,
    "two runs with one name": training.one_name,
    "Weights & Biases killed or unwritable": training.wandb,
    "hub: well, slow, 404, 403, 503, cut off, absent": hub.cases,
    **{f"changed byte, {kind}": kind_cases for kind, kind_cases in damage.KINDS.items()},
}


def new_lab(folder: Path, is_short: bool) -> Lab:
    (folder / "words.txt").write_text(small_text())
    lab = Lab(folder, small_options(folder / "words.txt", folder / "cache"), is_short)
    os.chdir(folder)
    for name, options in (("run", []), ("eventful", kills.OPTIONS)):
        ended = end(start([*lab.options, *options, f"--name={name}"]))
        assert ended.status == 0, ended.error
    return lab


def do(case: Case, lab: Lab, folder: Path) -> None:
    """Does the case in a folder of its own, and writes what came of it to a file beside."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    result = {"error": None, "seen": "", "count": 1}
    try:
        seen = case(lab)
        result["seen"], result["count"] = seen if isinstance(seen, tuple) else (seen, 1)
    except BaseException:
        result["error"] = traceback.format_exc()
    folder.with_suffix(".json").write_text(json.dumps(result))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="some cases of each fault, in at most four minutes")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only the faults whose name contains this word; may be repeated"
    )
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        lab = new_lab(Path(folder), options.short)
        queue = [(n, *case) for n in FAULTS if options.only.lower() in n.lower() for case in FAULTS[n](lab)]
        working: dict[int, tuple[str, str, Path]] = {}
        results: dict[str, list[tuple[str, dict]]] = {}
        for number, job in enumerate([*queue, *[None] * (os.cpu_count() or 1)]):
            while len(working) == (os.cpu_count() or 1) or (job is None and working):
                process, _ = os.wait()
                fault, label, place = working.pop(process)
                result = json.loads(place.with_suffix(".json").read_text())
                results.setdefault(fault, []).append((label, result))
                held = "did not hold" if result["error"] else "held"
                print(f"{time.monotonic() - began:4.0f} s  {fault}, {label}: {held}", file=sys.stderr, flush=True)
            if job is not None:
                fault, label, case = job
                place = Path(folder, "cases", str(number))
                process = os.fork()
                if process == 0:
                    do(case, lab, place)
                    os._exit(0)
                working[process] = fault, label, place
    failures = show(results)
    print(f"\n{time.monotonic() - began:.0f} seconds")
    return 1 if failures else 0


def show(results: dict[str, list[tuple[str, dict]]]) -> int:
    """Prints the table, and then what did not hold; gives the number of cases that did not."""
    print("| fault | cases | held | what a person sees |\n|---|---|---|---|")
    failures = []
    for fault, cases in results.items():
        total = sum(result["count"] for _, result in cases)
        failed = [(f"{fault}, {label}", result["error"]) for label, result in cases if result["error"]]
        seen = Counter(result["seen"] for _, result in cases if not result["error"]).most_common(1)
        print(f"| {fault} | {total} | {total - len(failed)} | {seen[0][0] if seen else ''} |")
        failures += failed
    for label, error in failures:
        print(f"\n{label}:\n{error}")
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
