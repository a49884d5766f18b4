"""Mutation testing: small faults are put into the code, one at a time, and the tests must notice.

    python -m tests.mutants --number 100 --seed 2

First every test runs once, to see which lines it executes and how long it takes: some minutes, which --traces FILE
saves the next time. Then, for each mutant, the tests that execute its line run in a forked process until one fails.
Each line of the output is one mutant: killed, survived, or late where the tests did not end. What survives changes
nothing, or shows what no test looks at. Tests that run the code in processes of their own have no mutant there, and are
left out.
"""

import argparse
import ast
import inspect
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("data", "model/training", "model/runs")
TESTS = ("tests/data", "tests/model/training", "tests/model/runs", "tests/test_options.py", "tests/test_report.py")
TESTS += ("tests/test_train.py", "tests/test_train_mistakes.py", "tests/test_hostile_files.py")
# Left out: what takes minutes, and what runs the code in processes of their own, which have no mutant.
LEFT_OUT = ("killed", "every_shipped", "ten_billion", "help_does_not", "two_devices", "cold_cache", "locale", "closed")
LEFT_OUT += ("as_a_process", "ctrl_c_during", "ctrl_c_before", "sharded_weights", "full_disk_is_reported")
SHARED = {"trained", "bpe", "stored"}  # fixtures that are made once for many tests
SECONDS_OF_TESTS, TIME_LIMIT = 60, 120  # for each mutant

OPPOSITES = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
OPPOSITES += [(ast.Add, ast.Sub), (ast.Mult, ast.Add), (ast.Div, ast.Mult), (ast.FloorDiv, ast.Mult), (ast.And, ast.Or)]
OPPOSITES += [(ast.Mod, ast.FloorDiv), (ast.BitAnd, ast.BitOr), (ast.BitXor, ast.BitAnd), (ast.LShift, ast.RShift)]
CHANGED = {b: a for a, b in OPPOSITES} | dict(OPPOSITES) | {ast.Pow: ast.Mult}
EQUALITIES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)


def with_fields(node, **fields):
    """A copy of `node` in which some fields are other ones."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


def replacements(node):
    """What may stand in place of a node."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                yield with_fields(node, ops=[*ops[:place], CHANGED[type(op)](), *ops[place + 1 :]])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in CHANGED:
            yield with_fields(node, op=CHANGED[type(op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield ast.Constant(not value if isinstance(value, bool) else value + 1)
        case ast.Constant(value=str() as value) if re.fullmatch(r"[\w./-]+", value):  # a key, a mode, a name
            yield ast.Constant(value + "x")
        case ast.Slice():
            for name in ("lower", "upper"):
                if (bound := getattr(node, name)) and not isinstance(bound, ast.Constant):
                    yield with_fields(node, **{name: ast.BinOp(bound, ast.Add(), ast.Constant(1))})
        case ast.Call():
            for keyword in node.keywords:
                yield with_fields(node, keywords=[other for other in node.keywords if other is not keyword])
        case ast.AugAssign(op=op) if type(op) in CHANGED:
            yield with_fields(node, op=CHANGED[type(op)]())
            yield ast.Pass()
        case ast.Expr(value=ast.Call()) | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            negated_below = isinstance(test, ast.Compare) and isinstance(test.ops[0], EQUALITIES)
            if not negated_below and not isinstance(test, ast.UnaryOp):
                yield with_fields(node, test=ast.UnaryOp(ast.Not(), test))
            if isinstance(node, ast.If) and all(isinstance(child, (ast.Raise, ast.Return)) for child in node.body):
                yield with_fields(node, test=ast.Constant(False))


def is_left_out(node):
    """What no test should notice: the texts of messages, types, and what is only there for a type checker."""
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.value) == "Literal"
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, (ast.Raise, ast.JoinedStr))


def mutants_of(tree):
    """(nodes from the outermost to the one that is replaced, field, place in it, replacement) of each mutant."""

    def visit(path):
        for field, value in ast.iter_fields(path[-1]):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for place, child in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(child, ast.AST) and not is_left_out(child):
                    yield from (([*path, child], field, place, new) for new in replacements(child))
                    yield from visit([*path, child])

    return visit([tree])


def put_in(module, tree):
    """Makes a module, and whoever has imported from it, run the code of `tree`."""
    changed = sys.modules[module.__name__] = types.ModuleType(module.__name__)  # dataclasses look there
    changed.__dict__.update(__file__=module.__file__, __package__=module.__package__)
    exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), changed.__dict__)
    sys.modules[module.__name__] = module
    ours = [other for name, other in sys.modules.items() if name.split(".")[0] in ("data", "model", "train", "tests")]
    transplant(module, changed, ours)


def transplant(old, new, users):
    """Gives the functions and classes of `old`, which others hold, the code of those of `new`; and the values too."""
    for name, value in list(vars(new).items()):
        before = vars(old).get(name)
        function, original = (inner_function(x) for x in (value, before))
        if isinstance(function, types.FunctionType) and isinstance(original, types.FunctionType):
            try:
                for part in ("__code__", "__defaults__", "__kwdefaults__"):
                    setattr(original, part, getattr(function, part))
            except ValueError:  # it no longer calls super()
                setattr(old, name, value)
        elif isinstance(value, type) and isinstance(before, type):
            if value is not before:
                transplant(before, value, [before])
        elif not name.startswith("__") and value is not before:
            for user in users:
                if vars(user).get(name, user) is before:
                    setattr(user, name, value)


def inner_function(value):
    """The function in a method, a property or what a decorator has made."""
    for name in ("__func__", "fget", "func"):
        value = getattr(value, name, value)
    return inspect.unwrap(value) if callable(value) else value


class MutationTesting:
    """A pytest plugin: after the collection, runs the tests as often as it takes, each time in a forked process."""

    def __init__(self, options, folder):
        self.options, self.folder, self.lines = options, folder, set()

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if not any(words in item.nodeid for words in LEFT_OUT)]

    def pytest_runtestloop(self, session):
        self.sources = [path for name in SOURCES for path in sorted((ROOT / name).rglob("*.py"))]
        self.watched = {str(path): path.relative_to(ROOT).as_posix() for path in self.sources}
        traces = self.options.traces
        known = json.loads(traces.read_text()) if traces and traces.exists() else {}
        jobs = defaultdict(list)
        for item in session.items:
            if item.nodeid not in known:
                jobs[item.path].append(item)
        for job, _, _ in self.in_processes(list(jobs.values()), self.trace, 3600):
            noted = self.noted(job)
            found = json.loads(noted.read_text()) if noted.exists() else {}
            print(f"{job[0].path.name}: {len(found)} of {len(job)} tests passed", file=sys.stderr, flush=True)
            known |= found
            if traces:
                traces.write_text(json.dumps(known))
        self.tests = [(item, *known[item.nodeid]) for item in session.items if item.nodeid in known]
        every = [
            (path, number)
            for path in self.sources
            for number, _ in enumerate(mutants_of(ast.parse(path.read_text(encoding="utf-8"))))
        ]
        chosen = random.Random(self.options.seed).sample(every, self.options.number)
        counts = Counter()
        for (path, number), status, seconds in self.in_processes(chosen, self.try_mutant, TIME_LIMIT):
            verdict = "late" if status is None else "survived" if status == 0 else "killed"
            verdict = "broken" if status == 3 << 8 else verdict
            print(f"{verdict:8}  {describe(path, number)}  ({seconds:.0f} s)", flush=True)
            counts[verdict] += 1
        if chosen:
            share = counts["killed"] / len(chosen)
            print(f"{counts['killed']} of {len(chosen)} mutants were killed ({share:.0%}); {counts['late']} were late")
        return True

    def in_processes(self, jobs, function, time_limit):
        """(job, exit status or None, seconds) of each, as they end."""
        waiting, running = list(jobs), {}
        while waiting or running:
            while waiting and len(running) < self.options.jobs:
                job = waiting.pop(0)
                place = Path(tempfile.mkdtemp(dir=self.folder))
                pid = os.fork()
                if pid == 0:
                    self.begin(place)
                    try:
                        function(job)
                        os._exit(0)
                    except KeyboardInterrupt:  # which a test has sent
                        os._exit(1)
                    except BaseException:
                        traceback.print_exc()
                        os._exit(3)
                running[pid] = job, time.time(), place
            time.sleep(0.02)
            for pid, (job, began, place) in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                late = not ended and time.time() - began > time_limit
                if ended or late:
                    with suppress(ProcessLookupError):  # also what the tests have started
                        os.killpg(pid, signal.SIGKILL)
                    if late:
                        os.waitpid(pid, 0)
                    if not late and os.waitstatus_to_exitcode(status) == 3:
                        print((place / "output").read_text(errors="replace"), file=sys.stderr)
                    shutil.rmtree(place, ignore_errors=True)
                    del running[pid]
                    yield job, None if late else status, time.time() - began

    def begin(self, place):
        os.setpgrp()
        output = os.open(place / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(place)  # where tmp_path is

    def note(self, frame, event, argument):
        if name := self.watched.get(frame.f_code.co_filename):
            self.lines.add((name, frame.f_lineno))
            return self.note

    def trace(self, items):
        """Writes which of these tests pass, in how many seconds of the processor, and what they execute."""
        noted, shared, failed = {}, defaultdict(set), set()
        items[0].config.pluginmanager.register(Failures(failed.add))
        for item, following in zip(items, [*items[1:], None], strict=True):
            self.lines, began = set(), sum(os.times()[:4])
            threading.settrace(self.note)
            sys.settrace(self.note)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            for fixture in SHARED & set(item.fixturenames):
                shared[fixture] |= self.lines
                self.lines = shared[fixture]
            noted[item.nodeid] = sum(os.times()[:4]) - began, self.lines
        passed = {test: (seconds, sorted(lines)) for test, (seconds, lines) in noted.items() if test not in failed}
        self.noted(items).write_text(json.dumps(passed))

    def noted(self, items):
        return self.folder / items[0].path.relative_to(ROOT).with_suffix(".json").as_posix().replace("/", "-")

    def try_mutant(self, mutant):
        """Ends the process with status 1 when a test fails."""
        path, number = mutant
        name = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes, field, place, new = list(mutants_of(tree))[number]
        items = self.tests_of(name, nodes)
        value = getattr(nodes[-2], field)
        if isinstance(value, list):
            value[place] = new
        else:
            setattr(nodes[-2], field, new)
        module = sys.modules[name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")]
        try:
            put_in(module, tree)
        except Exception:  # it cannot even be imported
            os._exit(1)
        if items:
            items[0].config.pluginmanager.register(Failures(lambda test: os._exit(1)))
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def tests_of(self, name, nodes):
        """The tests of the innermost node that any test executes; first those that execute little else."""
        executed = [
            (len(lines), seconds, item, {line for file, line in lines if file == name})
            for item, seconds, lines in self.tests
        ]
        for node in reversed(nodes):
            span = range(getattr(node, "lineno", 0), getattr(node, "end_lineno", 10**6) + 1)
            if found := [test for test in executed if any(line in span for line in test[3])]:
                break
        items, total = [], 0.0
        for _, seconds, item, _ in sorted(found, key=lambda test: test[:2]):
            total += seconds
            if total < SECONDS_OF_TESTS:
                items.append(item)
        return items


class Failures:
    """A pytest plugin that calls a function with the name of each test that fails."""

    def __init__(self, call):
        self.call = call

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.call(report.nodeid)


def describe(path, number):
    nodes, _, _, new = list(mutants_of(ast.parse(path.read_text(encoding="utf-8"))))[number]
    before, after = (" ".join(ast.unparse(node).split())[:100] for node in (nodes[-1], new))
    return f"{path.relative_to(ROOT)}:{nodes[-1].lineno}  {before}  ->  {after}"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=100, help="mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="of their choice")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants to try at once")
    parser.add_argument("--traces", type=Path, help="what each test executes: read from this file, or written to it")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    import datasets  # noqa: F401  once, and not for each mutant
    import matplotlib.pyplot  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        plugin = MutationTesting(options, Path(folder))
        return pytest.main(["-s", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS], plugins=[plugin])


if __name__ == "__main__":
    sys.exit(main())
