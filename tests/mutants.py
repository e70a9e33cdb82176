"""Mutation test: break the code in one place, and see whether a test notices. ``make mutants``.

A mutant is one operator, number, condition, statement or pair of arguments changed. Each runs in a
copy of the tree, first against the tests that mirror its file, then against all of `TESTS`. It is
killed if a test fails or the time is up. The same seed draws the same mutants of the same code.

What no test can notice is left out by rule (see `Candidates`): annotations and what is there for
type checkers, decorators, texts and what raises or warns with them, assertions, ``__all__``,
arguments that only make things faster, and branches for a GPU, which need one.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("labels", "nets", "methods", "statistics", "training", "evaluation")
TESTS = [*(f"tests/{name}" for name in PACKAGES), "tests/test_checks.py"]
DOCTESTS = [f"src/lmrc/{name}" for name in PACKAGES]
MIRROR_SECONDS, ALL_SECONDS = 300, 3600  # for the tests that mirror a file, and for all
PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
#: With 8 GB at the most: a mutant may take any amount of memory.
LIMITED = ["sh", "-c", 'ulimit -d 8388608; exec "$@"', "sh"]

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


def passes(place: Path, tests: list[str], seconds: float) -> bool:
    """Tell whether tests pass in a copy of the tree within a time."""
    environment = os.environ | {"PYTHONPATH": f"{place}/src", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (place / "said.txt").open("w") as said:
        process = subprocess.Popen(
            [*LIMITED, *PYTEST, *tests],
            **{"cwd": place, "env": environment, "stdout": said, "stderr": said},
            start_new_session=True,
        )
        try:
            return process.wait(seconds) in (0, 5)  # 5: there are no tests
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False


def survives(mutant: Mutant, place: Path) -> bool:
    """Tell whether no test notices a mutant, in a copy of the tree."""
    path, whole = place / mutant.path, (place / mutant.path).read_text("utf-8")
    path.write_text(mutant.source, "utf-8")
    _, _, package, file = mutant.path.split("/")
    mirror = f"tests/{package}/test_{file}"
    own = [mutant.path, *([mirror] if (place / mirror).exists() else [])]
    others = [f"tests/{package}", *TESTS, *DOCTESTS]
    try:
        return passes(place, own, MIRROR_SECONDS) and passes(place, others, ALL_SECONDS)
    finally:
        path.write_text(whole, "utf-8")


def main() -> None:
    """Sample mutants, run them, and print what survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="mutants to sample; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="those whose line in the list has this in it")
    options = parser.parse_args()
    files = [p for name in DOCTESTS for p in sorted((ROOT / name).glob("*.py"))]
    mutants = [mutant for path in files for mutant in Candidates(path).found]
    mutants = [mutant for mutant in mutants if options.only in str(mutant)]
    total = len(mutants)
    if 0 < options.sample < total:
        mutants = random.Random(options.seed).sample(mutants, options.sample)
    print(f"{len(mutants)} of {total} mutants", flush=True)
    ignore = shutil.ignore_patterns(".git", ".venv*", "results", "build", "__pycache__", ".*_cache")
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()  # copies of the tree
    killed = defaultdict(list)

    def run(mutant: Mutant) -> None:
        place = free.get()
        survived = survives(mutant, place)
        free.put(place)
        for package in (mutant.path.split("/")[2], "all"):
            killed[package].append(not survived)
        print("survived" if survived else "killed", mutant, flush=True)

    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        for i in range(options.jobs):
            free.put(shutil.copytree(ROOT, Path(temporary, str(i)), ignore=ignore))
        if not passes(place := free.get(), [*TESTS, *DOCTESTS], ALL_SECONDS):
            sys.exit(f"tests fail as they are:\n{(place / 'said.txt').read_text()}")
        free.put(place)
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(run, mutants))
    for package, dead in killed.items():
        print(f"{package:12} {sum(dead):4} of {len(dead):4} killed, {sum(dead) / len(dead):.1%}")


if __name__ == "__main__":
    main()
