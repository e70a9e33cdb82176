"""Mutation test: break the code in one place, and see whether a test notices. ``make mutants``.

A mutant is one operator, number, condition, statement or pair of arguments changed. Each runs
against the tests that mirror its file, then those of its package, then all others, until one fails,
in a copy of the tree. One that fails a test, or runs into the time limit, is killed. The same seed
samples the same mutants of the same code.

What no test can notice is left out by rule (see `Candidates`): annotations and what is there for
type checkers, decorators, texts and what raises or warns with them, assertions, ``__all__``,
arguments that only make things faster, and branches for a GPU, which need one.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
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
HEAVY = "matplotlib.figure numpy pandas PIL.Image pytest safetensors.torch scipy.stats"
SEVERAL = "sklearn.datasets sklearn.utils.estimator_checks torch typer rich.progress"
NOT_COPIED = (".git", ".venv*", "results", "build", "__pycache__", ".*_cache")
NO_TESTS = 5  # pytest's exit code
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


def run_tests(place: Path, *groups: list[str]) -> int:
    """Run groups of tests in a copy of the tree until one fails; this is a process of its own."""
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
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    codes = (pytest.main([*words, *group]) for group in groups)
    return next((int(code) for code in codes if code not in (0, NO_TESTS)), 0)


def side_by_side(work, places: list[Path], limit: float):
    """Run functions in forked processes, each in a copy of the tree of its own.

    `work` yields a key and a function of the place. Yields the key, the exit code and the place; a
    process that takes longer than the limit, in seconds, is killed.
    """
    free, running, work = list(places), {}, iter(work)
    while True:
        while free and (task := next(work, None)):
            key, function = task
            place = free.pop()
            if not (child := os.fork()):
                code = 70
                try:
                    code = function(place)
                except BaseException:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(code)
            running[child] = key, place, time.monotonic() + limit
        if not running:
            return
        time.sleep(0.05)
        for child, (key, place, end) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            if not done and time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                code = -signal.SIGKILL
            if code is not None:
                del running[child]
                free.append(place)
                yield key, code, place


def nearest_first(path: str) -> list[list[str]]:
    """Return all tests in groups: those that mirror a file, those of its package, the others."""
    _, _, package, file = path.split("/")
    mirror, own = f"tests/{package}/test_{file}", f"tests/{package}"
    mirrors = [mirror] if (ROOT / mirror).exists() else []
    return [[path, *mirrors], [own], [name for name in (*TESTS, *DOCTESTS) if name != own]]


def main() -> None:
    """Sample mutants, run them, and print which survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="mutants to sample; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="those whose line in the list has this in it")
    parser.add_argument("--again", type=Path, help="those alone that this file lists")
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
    killed, survivors = defaultdict(list), []

    def broken(mutant):
        def run(place):
            (place / mutant.path).write_text(mutant.source, encoding="utf-8")
            return run_tests(place, *nearest_first(mutant.path))

        return mutant, run

    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        places = [Path(temporary, str(i)) for i in range(options.jobs)]
        for place in places:
            shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(*NOT_COPIED))
        started = time.monotonic()
        as_is = [("as is", lambda place: run_tests(place, [*TESTS, *DOCTESTS]))]
        for _, code, place in side_by_side(as_is, places, float("inf")):
            if code:
                sys.exit(f"the tests fail as they are:\n{(place / 'said.txt').read_text()}")
        limit = 60 + 3 * (time.monotonic() - started)
        print(f"{len(mutants)} of {total} mutants", flush=True)
        for mutant, code, place in side_by_side(map(broken, mutants), places, limit):
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
