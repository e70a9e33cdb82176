"""Mutation test: break the code in one place, and see whether a test notices. ``make mutants``.

A mutant is one operator, number, condition, statement or pair of arguments changed. Each runs
against the tests that execute its line, those that mirror its file and the quickest first, in a
copy of the tree. One that fails a test, or runs into a time limit, is killed. The same seed draws
the same mutants of the same code.

What no test can notice is left out by rule (see `Candidates`): annotations and what is there for
type checkers, decorators, texts and what raises or warns with them, assertions, ``__all__``,
arguments that only make things faster, and branches for a GPU, which need one.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import itertools
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
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("labels", "nets", "methods", "statistics", "training", "evaluation")
TESTS = [*(f"tests/{name}" for name in PACKAGES), "tests/test_checks.py"]
DOCTESTS = [f"src/lmrc/{name}" for name in PACKAGES]
MAP = ROOT / "build" / "mutants.json"  # which test executes which lines, from the last time
HEAVY = "matplotlib.figure numpy pandas PIL.Image pytest safetensors.torch scipy.stats"
SEVERAL = "sklearn.datasets sklearn.utils.estimator_checks torch typer rich.progress"
MEMORY = 8 * 2**30  # bytes that a mutant may take

OTHER = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
TEXTS = {"warn", "warn_of_capacity", "say", "TypeVar", "cast", "print"}
ANY_ORDER = ("max", "min")
ONE_ORDER = ("isinstance", "setattr", "getattr", "hasattr")  # any test would notice another
FASTER = {"non_blocking", "pin_memory", "memory_format", "strict", "stacklevel", "set_to_none"}
FOR_SPEED = re.compile(r"#.*(memory|at a time|fast|quick|speed|bytes|takes long|threads|seconds)")
OF_GPU = re.compile(r"cuda|mps|bf16|graph|GPU|compile|TYPE_CHECKING")


@dataclass
class Mutant:
    """One change of the code."""

    path: str
    line: int
    what: str
    source: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


class Candidates(ast.NodeVisitor):
    """All mutants of a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.found = path.relative_to(ROOT).as_posix(), []
        self.lines = path.read_bytes().splitlines(keepends=True)
        self.visit(ast.parse(path.read_bytes()))

    def change(self, node, new: str, what: str = "") -> None:
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        head, tail = lines[0][: node.col_offset], lines[-1][node.end_col_offset :]
        source = [*self.lines[: node.lineno - 1], head, new.encode(), tail]
        text = b"".join([*source, *self.lines[node.end_lineno :]]).decode()
        ast.parse(text)
        what = what or f"{ast.unparse(node):.60} → {new:.60}"
        self.found.append(Mutant(self.path, node.lineno, what, text))

    def visit(self, node) -> None:
        getattr(self, f"visit_{type(node).__name__}", lambda _: None)(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "op", "ops"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not self.is_left_out(child, node):
                    self.visit(child)

    def is_left_out(self, node, parent) -> bool:
        match node:
            case ast.Raise() | ast.Assert() | ast.JoinedStr():
                return True
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                return True
            case ast.Assign() if isinstance(parent, ast.Module):
                comment = self.lines[node.end_lineno - 1][node.end_col_offset :].decode()
                return bool(FOR_SPEED.search(comment))
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in TEXTS:
                return True
            case ast.keyword(arg=name) if name in FASTER:
                return True
        of_gpu = isinstance(parent, (ast.If, ast.IfExp)) and OF_GPU.search(ast.unparse(parent.test))
        return bool(of_gpu)  # the whole of it: which branch is taken is for a GPU to say

    def visit_Compare(self, node) -> None:
        for i, op in enumerate(node.ops):
            ops = [*node.ops[:i], OTHER[type(op)](), *node.ops[i + 1 :]]
            self.change(node, f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})")

    def visit_BinOp(self, node) -> None:
        if type(node.op) in OTHER and not self.is_type(node):
            other = ast.BinOp(node.left, OTHER[type(node.op)](), node.right)
            self.change(node, f"({ast.unparse(other)})")

    def is_type(self, node) -> bool:
        """Tell whether this is ``A | None``, or the like, and no arithmetic."""
        parts = (node.left, node.right)
        return isinstance(node.op, ast.BitOr) and any(
            (isinstance(part, ast.Constant) and part.value is None)
            or (isinstance(part, ast.Name) and part.id in ("str", "int", "float", "bool"))
            for part in parts
        )

    def visit_BoolOp(self, node) -> None:
        self.change(node, f"({ast.unparse(ast.BoolOp(OTHER[type(node.op)](), node.values))})")

    def visit_UnaryOp(self, node) -> None:
        if isinstance(node.op, (ast.USub, ast.Not)):
            self.change(node, f"({ast.unparse(node.operand)})")

    def visit_Constant(self, node) -> None:
        if isinstance(node.value, bool):
            self.change(node, str(not node.value))
        elif isinstance(node.value, int):
            self.change(node, str(node.value + 1 if node.value < 10 else 2 * node.value))
        elif isinstance(node.value, float):
            self.change(node, repr(2 * node.value if abs(node.value) > 1e-6 else 1.0))

    def visit_If(self, node) -> None:
        if not OF_GPU.search(ast.unparse(node.test)) and not isinstance(node.test, ast.Compare):
            self.change(node.test, f"(not ({ast.unparse(node.test)}))")

    visit_IfExp = visit_If  # noqa: N815

    def visit_Expr(self, node) -> None:
        if isinstance(node.value, ast.Call) and not self.is_left_out(node.value, node):
            self.change(node, "pass", f"without {ast.unparse(node):.60}")

    def visit_AugAssign(self, node) -> None:
        self.change(node, "pass", f"without {ast.unparse(node):.60}")

    def visit_Assign(self, node) -> None:
        if not isinstance(node.targets[0], ast.Name | ast.Tuple):
            self.change(node, "pass", f"without {ast.unparse(node):.60}")

    def visit_Call(self, node) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in (*ANY_ORDER, *ONE_ORDER):
            return
        if len(node.args) > 1 and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
            first, second, *rest = node.args
            swapped = ast.Call(node.func, [second, first, *rest], node.keywords)
            self.change(node, ast.unparse(swapped))


class Recorder:
    """Notes, as a plugin of pytest, which lines of the packages a test executes, and its time."""

    def __init__(self, place: Path) -> None:
        self.source, self.tests = f"{place}/src/lmrc/", {}

    def pytest_runtest_logreport(self, report) -> None:
        self.seconds += report.duration
        self.passed &= report.outcome == "passed"

    def pytest_runtest_logstart(self, nodeid) -> None:
        self.lines, self.seconds, self.passed = defaultdict(set), 0.0, True
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    def pytest_runtest_logfinish(self, nodeid) -> None:
        sys.settrace(None)
        threading.settrace(None)
        if self.passed:
            lines = {path: sorted(numbers) for path, numbers in self.lines.items()}
            self.tests[nodeid] = {"seconds": self.seconds, "lines": lines}

    def trace(self, frame, event, _):
        name = frame.f_code.co_filename
        if not name.startswith(self.source):
            return None
        seen = self.lines[f"src/lmrc/{name.removeprefix(self.source)}"]

        def note(frame, event, _):
            seen.add(frame.f_lineno)
            return note

        return note(frame, event, _)


def run_tests(place: Path, words: list[str], *plugins) -> int:
    """Run tests in a copy of the tree; this is a process of its own."""
    import resource

    import pytest

    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    os.chdir(place)
    os.environ |= {"PYTHONPATH": f"{place}/src", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path.insert(0, f"{place}/src")
    quiet = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    return pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words], plugins)


def side_by_side(work, jobs: int, temporary: str):
    """Run functions in forked processes, each in a copy of the tree; yield what each came to.

    `work` yields what it is about, a function of the place, and a limit in seconds.
    """
    ignore = shutil.ignore_patterns(".git", ".venv*", "results", "build", "__pycache__", ".*_cache")
    free = [Path(temporary, str(i)) for i in range(jobs)]
    for place in free:
        shutil.copytree(ROOT, place, ignore=ignore)
    running, work = {}, iter(work)
    while True:
        while free and (task := next(work, None)):
            about, function, limit = task
            place = free.pop()
            if not (child := os.fork()):
                code = 70
                try:
                    code = function(place)
                except BaseException:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(code)
            running[child] = about, place, time.monotonic() + limit
        if not running:
            return
        time.sleep(0.05)
        for child, (about, place, end) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            if not done and time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                code = -signal.SIGKILL
            if code is not None:
                del running[child]
                free.append(place)
                yield about, code, place


def recorded(jobs: int, temporary: str, lenient: bool) -> dict:
    """Return all tests with the lines that they execute; most may be known from the last time.

    Where it is lenient, those that fail as they are are left out.
    """
    known = json.loads(MAP.read_text()) if MAP.exists() else {}
    files = [
        p for t in TESTS for p in ([ROOT / t] if t.endswith(".py") else (ROOT / t).glob("*.py"))
    ]
    files = sorted(
        {str(p.relative_to(ROOT)) for p in files if p.name.startswith("test_")} | {*DOCTESTS}
    )
    code = b"".join(p.read_bytes() for name in DOCTESTS for p in sorted((ROOT / name).glob("*.py")))

    def digest(name):
        own = (ROOT / name).read_bytes() if name.endswith(".py") else b""
        return hashlib.sha256(code + own).hexdigest()

    def record(name):
        def run(place):
            recorder = Recorder(place)
            result = run_tests(place, [name], recorder)
            Path(place, "map.json").write_text(json.dumps(recorder.tests))
            return result

        return run

    known = {name: known[name] for name in files if known.get(name, {}).get("of") == digest(name)}
    left = [name for name in files if name not in known]
    for name, result, place in side_by_side(((n, record(n), 3600) for n in left), jobs, temporary):
        if result not in (0, 5) and not lenient:
            sys.exit(f"the tests of {name} fail as they are:\n{(place / 'said.txt').read_text()}")
        known[name] = {"of": digest(name), "tests": json.loads((place / "map.json").read_text())}
        failing = "" if result in (0, 5) else ", without some that fail as they are"
        print(f"{name}: {len(known[name]['tests'])} tests{failing}", flush=True)
        MAP.parent.mkdir(exist_ok=True)
        MAP.write_text(json.dumps(known))
    return {test: facts for of_file in known.values() for test, facts in of_file["tests"].items()}


def nearest(mutant: Mutant, tests: dict, most: float) -> tuple[list[str], float]:
    """Return the tests that execute a mutant's line, and the seconds that they take.

    What runs at import, or in another process, is executed by all that execute the file.
    """
    of_file = {name: facts for name, facts in tests.items() if mutant.path in facts["lines"]}
    of_line = [name for name in of_file if mutant.line in of_file[name]["lines"][mutant.path]]
    _, _, package, file = mutant.path.split("/")
    mirror = f"tests/{package}/test_{file}"
    order = sorted(
        of_line or {*of_file, *(name for name in tests if name.startswith(mirror))},
        key=lambda name: (not name.startswith(mirror), tests[name]["seconds"]),
    )
    chosen, total = [], 0.0
    for name in order:
        if total <= most:
            chosen.append(name)
            total += tests[name]["seconds"]
    return chosen, total


def main() -> None:
    """Draw mutants, run them, and print what survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="mutants to draw; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="those whose line in the list has this in it")
    parser.add_argument("--most", type=float, default=300, help="seconds of tests for each")
    parser.add_argument("--again", type=Path, help="those alone that this file lists")
    parser.add_argument("--lenient", action="store_true", help="leave out tests that fail as is")
    parser.add_argument("--out", type=Path, help="file for the survivors")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name in f"{HEAVY} {SEVERAL}".split():  # once, and not in each process
        with suppress(ImportError):
            __import__(name)
    files = [p for name in DOCTESTS for p in sorted((ROOT / name).glob("*.py"))]
    mutants = [mutant for path in files for mutant in Candidates(path).found]
    mutants = [mutant for mutant in mutants if options.only in str(mutant)]
    if options.again:
        listed = set(options.again.read_text("utf-8").splitlines())
        mutants = [mutant for mutant in mutants if str(mutant) in listed]
    total = len(mutants)
    if 0 < options.sample < total:
        mutants = random.Random(options.seed).sample(mutants, options.sample)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        tests = recorded(options.jobs, f"{temporary}/as-is", options.lenient)
        print(f"{len(mutants)} of {total} mutants, {len(tests)} tests", flush=True)

        def broken(mutant):
            chosen, seconds = nearest(mutant, tests, options.most)

            def run(place):
                if not chosen:
                    return 0
                path = place / mutant.path
                path.write_text(mutant.source, encoding="utf-8")
                return run_tests(place, ["-x", *chosen])

            return mutant, run, 30 + 5 * seconds

        killed, survivors = defaultdict(list), []
        work = (broken(mutant) for mutant in mutants)
        for mutant, code, place in side_by_side(work, options.jobs, f"{temporary}/broken"):
            shutil.copy(ROOT / mutant.path, place / mutant.path)
            killed[mutant.path.split("/")[2]].append(code != 0)
            print(f"killed ({code})" if code else "survived", mutant, flush=True)
            if not code:
                survivors.append(mutant)
    for package, dead in [*killed.items(), ("all", [*itertools.chain(*killed.values())])]:
        print(f"{package:12} {sum(dead):4} of {len(dead):4} killed, {sum(dead) / len(dead):.1%}")
    if options.out:
        options.out.write_text("".join(f"{mutant}\n" for mutant in sorted(survivors, key=str)))


if __name__ == "__main__":
    main()
