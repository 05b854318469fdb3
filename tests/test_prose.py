"""The language of docstrings, comments, messages and names: how often each room breaks a rule, which may only fall.

The rules, in the words of a reader: a docstring begins with a verb or a noun of the field; a relative clause and a
pronoun have their noun before them; a function that returns nothing begins its docstring with a verb; a parameter or
variable is not called by an everyday word that may mean anything.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pslab"
OPENING = re.compile(r"(What|Those|That|Of|As|Who|Which|Where|It|Nothing|Nobody|One|This)\b")
CLAUSE = re.compile(
    r"\b(what is|what was|what are|those that|those of|that of|who is|who are|who was|who has|whoever|whatever)\b", re.I
)
BANNED = {"place", "found", "own", "each", "kept", "held", "told", "way", "work", "course", "life", "said", "dealt"}
VERBS = set(re.findall(r"\w+", """
Accept Add Advance Allocate Answer Append Apply Ask Average Await Begin Bind Bring Build Call Change Check Choose Clear
Close Compare Compile Compute Connect Convert Copy Count Create Decide Delete Deliver Describe Do Draw Drop Empty
End Evaluate Exchange Execute Exit Export Fill Find Fit Flush Follow Forget Forward Free Give Go Hand Handle Hide Hold
Ignore Import Initialize Insert Install Interrupt Join Keep Kill Label Lay Leave Let Limit Load Lock Log Make Map
Mark Measure Merge Move Name Note Notice Notify Open Order Pass Perform Pin Place Plot Post Prepare Print Publish
Pull Push Put Queue Raise Read Receive Recompute Record Redraw Refresh Refuse Register Release Remove Rename Renew
Replace Replay Report Request Reset Resolve Restart Restore Resume Return Rewrite Run Save Schedule Select Send
Serve Set Share Show Shut Skip Sort Spawn Split Start Step Stop Store Synchronize Take Tell Terminate Train Try
Undo Unlock Update Use Validate Verify Wait Wake Warn Watch Widen Wrap Write Yield
"""))

#: room: (openings, clauses, procedures without a verb, banned names)
MOST: dict[str, tuple[int, int, int, int]] = {
    "pslab": (0, 0, 0, 1),
    "config": (0, 0, 0, 2),
    "engines": (0, 0, 0, 3),
    "engines/check": (1, 6, 0, 73),
    "engines/emulation": (1, 9, 1, 6),
    "engines/experiment": (22, 12, 0, 33),
    "engines/local": (5, 16, 5, 41),
    "engines/processes": (1, 9, 0, 16),
    "engines/ray": (3, 9, 2, 24),
    "engines/server": (9, 14, 5, 45),
    "engines/virtual": (1, 14, 7, 26),
    "engines/worker": (4, 5, 3, 27),
    "lab/advise": (4, 21, 0, 108),
    "lab/commands": (0, 0, 0, 2),
    "lab/live": (0, 0, 0, 4),
    "lab/plots": (0, 0, 0, 209),
    "lab/records": (0, 0, 0, 83),
    "lab/runs": (0, 0, 0, 6),
    "policies": (0, 0, 0, 2),
    "policies/planning": (0, 0, 0, 6),
    "protocol": (0, 0, 0, 3),
    "tensors/compression": (0, 0, 0, 78),
    "tensors/partitioning": (0, 0, 0, 1),
    "tensors/update": (0, 0, 0, 60),
    "tensors/workload": (0, 0, 0, 60),
}


def rooms() -> dict[str, list[Path]]:
    """The files of each room: a folder of the package, or of its lab and its engines."""
    files: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts[:-1]
        deep = 2 if parts[:1] in (("lab",), ("engines",), ("tensors",), ("policies",)) else 1
        files.setdefault("/".join(parts[:deep]) or "pslab", []).append(path)
    return files


def texts(path: Path, tree: ast.Module) -> Iterator[str]:
    """The docstrings, comments and messages of a file."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#: ")


def names(tree: ast.Module) -> Iterator[str]:
    """The parameters and variables of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def procedures(tree: ast.Module) -> Iterator[str]:
    """The docstrings of functions that return nothing."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and ast.unparse(node.returns or node) == "None":
            yield from filter(None, [ast.get_docstring(node)])


def counted(files: list[Path]) -> tuple[int, int, int, int]:
    count = Counter[str]()
    for path in files:
        tree = ast.parse(path.read_text())
        documented = [text for node in ast.walk(tree)
                      if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                      and (text := ast.get_docstring(node))]  # fmt: skip
        count["opening"] += sum(bool(OPENING.match(text)) for text in documented)
        count["clause"] += sum(bool(CLAUSE.search(text)) for text in texts(path, tree))
        count["verb"] += sum(text.split()[0].strip(".,:;") not in VERBS for text in procedures(tree))
        count["name"] += sum(name in BANNED for name in names(tree))
    return count["opening"], count["clause"], count["verb"], count["name"]


@pytest.mark.parametrize("room", rooms())
def test_a_room_breaks_the_rules_of_language_no_more_often_than_before(room: str):
    now = counted(rooms()[room])
    most = MOST.get(room, (0, 0, 0, 0))
    assert all(count <= limit for count, limit in zip(now, most, strict=True)), (
        f"{room}: {now}, at most {most} (openings, clauses, procedures without a verb, banned names)")
    assert now == most, f"{room} has become better: write {now} into MOST"
