"""Judges tests by mutants: changes the code in one drawn place at a time, and prints which changes no test notices.

    python tests/tools/mutants.py pslab/tensors/compression tests/tensors/compression --count 40 --seed 1

Messages, imports, annotations and decorators stay as they are. Some mutants compute the same as the code: a person has
to look at those that survive.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SLOWER = 10  # by this factor a mutant's tests may be slower than those of the code as it is
UNCHANGED = (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Assert)
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum",
         "floor": "ceil", "ceil": "floor", "zeros": "ones"}  # fmt: skip


class Mutant(NamedTuple):
    """One change of a file: the text of the whole file with it, and its line and words for a person."""

    file: Path
    line: int
    words: str
    text: str


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand where this node stands."""
    match node:
        case ast.operator() | ast.cmpop() | ast.boolop() if type(node) in OPERATORS:
            yield OPERATORS[type(node)]()
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield ast.Constant(not value if isinstance(value, bool) else value + 1 if isinstance(value, int)
                               else value * 2 or 1.0)  # fmt: skip
        case ast.Name(id=name, ctx=ast.Load()) if name in CALLS:
            yield ast.Name(CALLS[name], ast.Load())
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in CALLS:
            yield ast.Attribute(node.value, CALLS[name], ast.Load())
        case ast.If():
            yield from (ast.If(ast.Constant(test), node.body, node.orelse) for test in (True, False))
        case ast.IfExp():
            yield from (node.body, node.orelse)
        case ast.AugAssign() | ast.Continue() | ast.Break() | ast.Expr(value=ast.Call()):
            yield ast.Pass()


def mutants(file: Path) -> Iterator[Callable[[], Mutant]]:
    """Yield a function for each mutant of a file: it takes long to write one, and few are drawn."""
    tree = ast.parse(file.read_text())

    def words(parent: ast.AST, node: ast.AST) -> str:
        shown = node if isinstance(node, ast.stmt) else parent  # an operator alone says little
        return ast.unparse(ast.fix_missing_locations(shown)).splitlines()[0][:100]

    def changed(parent: ast.AST, node: ast.AST, new: ast.AST, put: Callable[[ast.AST], None], line: int) -> Mutant:
        before = words(parent, node)
        put(new)
        text, after = ast.unparse(ast.fix_missing_locations(tree)), words(parent, new)
        put(node)
        return Mutant(file, line, f"{before} -> {after}", text)

    def visit(parent: ast.AST, line: int) -> Iterator[Callable[[], Mutant]]:
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(node, ast.AST) or isinstance(node, UNCHANGED):
                    continue
                listed = isinstance(value, list)
                put: Callable[[ast.AST], None] = (partial(value.__setitem__, index) if listed
                                                  else partial(setattr, parent, field))  # fmt: skip
                here = getattr(node, "lineno", line)
                yield from (partial(changed, parent, node, new, put, here) for new in replacements(node))
                yield from visit(node, here)

    yield from visit(tree, 1)


def outcome(place: Path, tests: list[str], limit_s: float | None = None) -> str:
    """Return whether the tests pass on the code in a folder: "SURVIVES", "killed", or "too long" beyond the limit."""
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "too long"
    return "killed" if done.returncode else "SURVIVES"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", help="a folder or a file of pslab")
    parser.add_argument("tests", nargs="+", help="what pytest is to run")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=1, help="number of the first mutant of the drawn ones to try")
    asked = parser.parse_args()
    code = ROOT / asked.code
    every = [each for file in (sorted(code.rglob("*.py")) if code.is_dir() else [code]) for each in mutants(file)]
    drawn = [made() for made in random.Random(asked.seed).sample(every, min(asked.count, len(every)))]
    with tempfile.TemporaryDirectory() as folder:
        place, counts = Path(folder), Counter[str]()
        for each in ROOT.iterdir():
            if each.name in ("pslab", "tests"):
                shutil.copytree(each, place / each.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif not each.name.startswith("."):
                (place / each.name).symlink_to(each)
        begin_s = time.monotonic()
        if outcome(place, asked.tests) != "SURVIVES":
            parser.error("the tests fail on the code as it is")
        limit_s = SLOWER * (time.monotonic() - begin_s)
        for number, mutant in enumerate(drawn[asked.first - 1 :], asked.first):
            name = mutant.file.relative_to(ROOT)
            before = (place / name).read_text()
            (place / name).write_text(mutant.text)
            result = outcome(place, asked.tests, limit_s)
            (place / name).write_text(before)
            counts[result] += 1
            print(f"{number:3} {result} {name}:{mutant.line}: {mutant.words}", flush=True)
    print(f"{dict(counts)}, drawn with seed {asked.seed} from {len(every)}")


if __name__ == "__main__":
    main()
