"""Rows from the functions of the interpreter's standard library: real text on every machine, without a download.

The keys are the names and words of a function, without its docstring; the label is 1 if it has a docstring. The files
are read in place (licence: PSF). Each release of Python is another data set, with another name.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from pslab.errors import ConfigError
from pslab.tensors.sparse import SparseRows, rows_of
from pslab.tensors.workload.data import Dataset, of_rows

WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
TEST_SHARE = 5  # a fifth of the rows is for testing, selected by their names
# modules that only some interpreters of a version have: tests, programs, a distribution's additions, removed modules
_LEFT_OUT = """
    test tests idlelib idle_test tkinter turtledemo turtle ensurepip venv lib2to3 distutils pydoc_data macholib site
    sitecustomize usercustomize sysconfig _pyrepl _distutils_system_mod _bootsubprocess __phello__ __hello__
    site-packages dist-packages __pycache__ lib-dynload aifc asynchat asyncore audioop cgi cgitb chunk crypt imghdr imp
    mailcap msilib nis nntplib nturl2path ossaudiodev pipes sndhdr smtpd spwd sunau telnetlib uu xdrlib
"""
LEFT_OUT = frozenset(_LEFT_OUT.split())

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Functions:
    """A row for each function of the interpreter's library: keys are its words, the label whether it has a docstring.

    About 12,000 rows and 24,000 keys, 22 in a row, without a download. Each release of Python has another library.
    """

    def dataset(self, name: str, root: Path) -> Dataset:
        """Return the rows as a Dataset; each call returns the same object."""
        return _dataset()


@lru_cache(maxsize=1)
def _dataset() -> Dataset:
    return of_rows(load())


@lru_cache(maxsize=1)
def load(library: Path | None = None) -> SparseRows:
    """Return a row for each function in the folder `library`; None: the interpreter's standard library.

    Raises:
        ConfigError: the folder has no source files, as with a zipped library.
    """
    folder = Path(sysconfig.get_paths()["stdlib"]) if library is None else library
    words: list[set[str]] = []
    labels, test = list[bool](), list[bool]()
    for path in _files(folder):
        text = (folder / path).read_text(encoding="utf-8")
        lines = text.splitlines()
        for name, function in _functions(ast.parse(text)):
            docstring = ast.get_docstring(function, clean=False) is not None
            body = lines[function.lineno - 1 : function.end_lineno]
            if docstring:
                first, last = (line - function.lineno for line in _span(function.body[0]))
                body = body[:first] + body[last + 1 :]
            words.append(set(WORD.findall("\n".join(body))))
            labels.append(docstring)
            test.append(zlib.crc32(f"{path}:{name}".encode()) % TEST_SHARE == 0)
    if not words:
        raise ConfigError("data", "functions", f"{folder} has no Python source files: use an interpreter that has them")
    counts = Counter(word for row in words for word in row)
    key_of = {word: key for key, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word)))}
    indices = [np.array(sorted(map(key_of.__getitem__, row)), np.int64) for row in words]
    rows = rows_of("", len(key_of), [(keys, np.full(len(keys), max(len(keys), 1) ** -0.5)) for keys in indices],
                    np.array(labels), np.array(test))  # fmt: skip
    parts = (rows.starts.astype("<i8").tobytes(), rows.keys.astype("<i8").tobytes(), bytes(labels), bytes(test),
             "\n".join(key_of).encode())  # fmt: skip
    name = f"functions-{sha256(b'|'.join(parts)).hexdigest()[:8]}"
    return SparseRows(name, rows.key_count, rows.starts, rows.keys, rows.values, rows.labels, rows.test)


def _files(folder: Path) -> list[str]:
    files = []
    for path in folder.rglob("*.py"):
        *folders, file = path.relative_to(folder).parts
        names = {*folders, file.removesuffix(".py")}
        if names & LEFT_OUT or any(name.startswith("config-") for name in folders) or file.startswith("_sysconfigdata"):
            continue
        files.append("/".join((*folders, file)))
    return sorted(files)


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield (dotted name, function) for the functions of a module and of its classes, without nested functions."""
    for name in ("body", "handlers", "orelse", "finalbody"):
        for node in getattr(tree, name, ()):
            if isinstance(node, Function):
                yield prefix + node.name, node
            elif isinstance(node, ast.ClassDef):
                yield from _functions(node, f"{prefix}{node.name}.")
            elif isinstance(node, (ast.If, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.ExceptHandler)):
                yield from _functions(node, prefix)


def _span(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno
