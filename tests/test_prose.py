"""The language of docstrings, comments, messages and names: no room breaks a rule.

The rules, in the words of a reader: a docstring begins with a verb or a noun of the field; a relative clause and a
pronoun have their noun before them; a function that returns nothing begins its docstring with a verb; a parameter or
variable is not called by an everyday word that may mean anything.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pslab"
OPENING = re.compile(r"(What|Those|That|Of|As|Who|Which|Where|It|Nothing|Nobody|One|This)\b")
CLAUSE = re.compile(
    r"\b(what is|what was|what are|those that|those of|that of|who is|who are|who was|who has|whoever|whatever)\b", re.I
)
BANNED = {"place", "found", "own", "each", "kept", "held", "told", "way", "work", "course", "life", "said", "dealt"}
VERBS = """
Accept Add Advance Allocate Answer Append Apply Ask Average Await Begin Bind Bring Build Call Change Check Choose Clear
Close Compare Compile Compute Connect Convert Copy Count Create Decide Delete Deliver Describe Do Draw Drop Empty
End Evaluate Exchange Execute Exit Export Fill Find Fit Flush Follow Forget Forward Free Give Go Hand Handle Hide Hold
Ignore Import Initialize Insert Install Interrupt Join Keep Kill Label Lay Leave Let Limit Load Lock Log Make Map
Mark Measure Merge Move Name Note Notice Notify Open Order Pass Perform Pin Place Plot Post Prepare Print Publish
Pull Push Put Queue Raise Read Receive Recompute Record Redraw Refresh Refuse Register Release Remove Rename Renew
Replace Replay Report Request Reset Resolve Restart Restore Resume Return Rewrite Run Save Schedule Select Send
Serve Set Share Show Shut Skip Sort Spawn Split Start Step Stop Store Synchronize Take Tell Terminate Train Try
Undo Unlock Update Use Validate Verify Wait Wake Warn Watch Widen Wrap Write Yield
"""


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


def breaches(path: Path) -> Iterator[str]:
    """The texts and names of a file that break a rule, with the rule."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            if OPENING.match(text):
                yield f"begins with no noun or verb: {text[:60]}"
    yield from (
        f"a clause without its noun: {found[0]}" for text in texts(path, tree) if (found := CLAUSE.search(text))
    )
    yield from (f"begins with no verb of the list: {text[:60]}" for text in procedures(tree)
                if text.split()[0].strip(".,:;") not in VERBS.split())  # fmt: skip
    yield from (f"a name that may mean anything: {name}" for name in names(tree) if name in BANNED)


@pytest.mark.parametrize("room", rooms())
def test_a_room_keeps_the_rules_of_language(room: str):
    assert [f"{path.relative_to(PACKAGE)}: {text}" for path in rooms()[room] for text in breaches(path)] == []
