"""The source text of a user's objects, so that a new kernel can create them again.

A text is a list of statements: the functions, classes and values of cells that an object refers to, and at last an
expression for the object. Python knows no file for a class defined in a cell: its methods' line numbers lead to it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import symtable
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pslab.config import sources
from pslab.config.run import Run

LAMBDA = "<lambda>"
LETTERS = 200_000  # most characters of files in one record: a sweep has hundreds of records
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def texts_of(run: Run) -> dict[str, str]:
    """Return the source texts of a run's objects by their fields, and the texts of the user's files that the objects
    import by their paths: ``{"model": ..., "mine.py": ...}``. Files of more than LETTERS together are left out."""
    texts, files = dict[str, str](), dict[str, str]()
    for field in run.surveys:
        source = _Source()
        try:
            last = source.expression(getattr(run, field))
        except Exception:  # raised by a user's class; a record is complete without this text, which only readers need
            continue
        texts[field] = "\n".join([*source.statements, last, ""])
        files |= source.files
    return texts | (files if sum(map(len, files.values())) <= LETTERS else {})


def statements_of(text: str) -> tuple[list[str], str]:
    """Return the statements of a text, and its last expression."""
    nodes = [_lines(text, node) for node in ast.parse(text).body]
    return nodes[:-1], nodes[-1]


def cells_of(statements: Iterable[str]) -> list[str]:
    """Return the texts of cells with these statements. Imports have a cell of their own, as in most notebooks: Python
    compiles calls of a module's functions differently if the same cell imports the module."""
    imports, others = list[str](), list[str]()
    for statement in statements:
        (imports if statement.startswith(("import ", "from ")) else others).append(statement)
    return ["\n".join(part) for part in (imports, others) if part]


class _Source:
    """The statements for one object, each after the statements that it needs."""

    def __init__(self) -> None:
        self.statements: dict[str, None] = {}
        self.files: dict[str, str] = {}
        self._names: set[str] = set()  # names that have a statement, or will have one

    def expression(self, value: Any) -> str:
        """Return a Python expression for a value, and add the statements that the expression needs."""
        if (literal := _literal(value)) is not None:
            return literal
        if isinstance(value, type) or isinstance(inspect.unwrap(value), types.FunctionType):
            if value.__name__ == LAMBDA:
                return self._lambda(value)
            self._define(value.__name__, value, {})
            return str(value.__name__)
        if isinstance(value, types.MethodType):
            return f"{self.expression(value.__self__)}.{value.__name__}"
        if isinstance(value, functools.partial):
            self._add("import functools")
            named = (f"{name}={self.expression(part)}" for name, part in value.keywords.items())
            return f"functools.partial({', '.join([*map(self.expression, (value.func, *value.args)), *named])})"
        if name := next((name for name, part in _main().items() if part is value and name[0] != "_"), ""):
            self._define(name, value, _main())
            return name
        return self._call(value)

    def _call(self, value: Any) -> str:
        """Return a call of an object's class; each argument is the object's attribute of the same name."""
        kind = type(value)
        try:
            wanted = [] if kind.__init__ is object.__init__ else [*inspect.signature(kind).parameters]
            given = {name: getattr(value, name) for name in wanted}
        except (AttributeError, TypeError, ValueError):
            return self._lacking(kind.__name__, value)
        arguments = (f"{name}={self.expression(part)}" for name, part in given.items())
        return f"{self.expression(kind)}({', '.join(arguments)})"

    def _lambda(self, value: types.FunctionType) -> str:
        node, text = _definition(value)
        if node is None:
            return self._lacking("lambda_", value)
        return self._closed(value, node, text)

    def _closed(self, value: types.FunctionType, node: Definition, text: str) -> str:
        # a function with a closure is made by another function, whose local names are its free variables
        closed = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        inside = {name: cell.cell_contents for name, cell in closed if name != "__class__"}
        self._reach(text, {name: part for name, part in value.__globals__.items() if name not in inside})
        is_lambda = isinstance(node, ast.Lambda)
        if not inside:
            return text if is_lambda else self._add(text, value.__name__)
        given = ", ".join(f"{name}={self.expression(part)}" for name, part in inside.items())
        name = "lambda_" if is_lambda else value.__name__
        body = f"return {text}" if is_lambda else f"{text}\n\nreturn {name}"
        indented = "\n".join(f"    {line}" if line else "" for line in body.split("\n"))
        self._add(f"def make_{name}({', '.join(inside)}):\n{indented}")
        return f"make_{name}({given})"

    def _define(self, name: str, value: Any, namespace: Mapping[str, Any]) -> None:
        if name in self._names:
            return
        self._names.add(name)
        module = value.__name__ if isinstance(value, types.ModuleType) else str(getattr(value, "__module__", ""))
        if isinstance(value, types.ModuleType):
            self._keep(module)
            self._add(f"import {module}" + f" as {name}" * (name != module))
        elif (literal := _literal(value)) is not None:
            self._add(f"{name} = {literal}")
        elif module != "__main__" and _attribute(module, value) is value:
            self._keep(module)
            head = value.__qualname__.partition(".")[0]
            self._add(f"from {module} import {head}" + f" as {name}" * (name != head and head == value.__qualname__))
            if head != value.__qualname__:
                self._add(f"{name} = {value.__qualname__}")
        elif isinstance(value, type) or getattr(inspect.unwrap(value), "__name__", LAMBDA) != LAMBDA:
            self._own(name, value)
        elif (statement := _binding(name)) is not None:
            self._reach(statement, _main())
            self._add(statement)
        else:
            self._lacking(name, value)

    def _own(self, name: str, value: types.FunctionType | type) -> None:
        function = inspect.unwrap(value)
        node, text = _definition(function)
        if node is None:
            self._lacking(name, value)
            return
        if isinstance(function, types.FunctionType):
            expression = self._closed(function, node, text)
            attributes = {attribute: literal for attribute, part in vars(value).items()
                          if (literal := _literal(part)) is not None and not attribute.startswith("__")}  # fmt: skip
        else:
            self._reach(text, _namespace(value))
            expression, attributes = self._add(text, value.__name__), {}
        if expression != name:
            self._add(f"{name} = {expression}")
        for attribute, literal in attributes.items():
            self._add(f"{name}.{attribute} = {literal}")

    def _reach(self, text: str, namespace: Mapping[str, Any]) -> None:
        for name in sorted({*_globals(symtable.symtable(text, "", "exec"))} & namespace.keys()):
            self._define(name, namespace[name], namespace)

    def _keep(self, module: str) -> None:
        # add the files of a user's module, and of the user's modules that it imports
        for name in sources.of(module):
            path = Path(str(import_module(name).__file__))
            parts = [*name.split("."), "__init__"] if path.stem == "__init__" else name.split(".")
            self.files["/".join(parts) + path.suffix] = path.read_text()

    def _lacking(self, name: str, value: Any) -> str:
        problem = f"{name} is a {type(value).__name__}, which the record does not contain: define it here"
        self._add(f"raise NotImplementedError({problem!r})")
        return name

    def _add(self, statement: str, name: str = "") -> str:
        self.statements[statement] = None
        return name


def _main() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def _namespace(value: Any) -> dict[str, Any]:
    # the globals of the module or notebook that defines the class
    function = next(_functions(value), None)
    return _main() if function is None else function.__globals__


def _functions(value: Any) -> Iterator[types.FunctionType]:
    # a function itself, or the methods that a class defines with code of their own
    for part in vars(value).values() if isinstance(value, type) else [value]:
        part = getattr(part, "fget", getattr(part, "__func__", part))
        if isinstance(part, types.FunctionType) and linecache.getlines(inspect.unwrap(part).__code__.co_filename):
            yield inspect.unwrap(part)


def _definition(value: types.FunctionType | type) -> tuple[Definition | None, str]:
    """Return the syntax node that defines a function or class, and its text; (None, "") if the text is not found."""
    function = next(_functions(value), None)
    texts = [*_cells()] if function is None else ["".join(linecache.getlines(function.__code__.co_filename))]
    for text in texts:
        tree = _parsed(text)
        for node in ast.walk(tree):
            if isinstance(node, Definition) and _defines(node, value, function, text):
                return node, _lines(text, node)
    return None, ""


def _defines(node: Definition, value: types.FunctionType | type, function: Any, text: str) -> bool:
    if isinstance(value, type):
        named = isinstance(node, ast.ClassDef) and node.name == value.__name__
        return named and (function is None or node.lineno <= function.__code__.co_firstlineno <= (node.end_lineno or 0))
    code = value.__code__
    if isinstance(node, ast.Lambda):
        made = compile(_lines(text, node), "", "eval").co_consts[0] if code.co_name == LAMBDA else None
        return made is not None and node.lineno == code.co_firstlineno and made.co_varnames == code.co_varnames and (
            {*made.co_names} == {*code.co_names, *code.co_freevars})  # fmt: skip
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name and (
        code.co_firstlineno in (node.lineno, *(decorator.lineno for decorator in node.decorator_list)))  # fmt: skip


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    # the global names that a text reads
    yield from (name.get_name() for name in table.get_symbols() if name.is_global() or table.get_type() == "module")
    for child in table.get_children():
        yield from _globals(child)


def _binding(name: str) -> str | None:
    # the last statement of a cell that assigns to the name
    for text in _cells():
        for node in reversed(_parsed(text).body):
            stored = (part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in (part.id for part in stored):
                return _lines(text, node)
    return None


def _cells() -> Iterator[str]:
    # the cells of a notebook, or the text of a script, the last one first
    main = _main()
    yield from reversed(main.get("In", []) or ["".join(linecache.getlines(str(main.get("__file__", ""))))])


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:  # a cell with a magic command
        return ast.Module([], [])


def _lines(text: str, node: ast.AST) -> str:
    if isinstance(node, ast.expr):
        return str(ast.get_source_segment(text, node))
    assert isinstance(node, ast.stmt)
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    lines = text.split("\n")[first - 1 : node.end_lineno]
    lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines)


def _attribute(module: str, value: Any) -> Any:
    target: Any = sys.modules.get(module)
    for name in str(getattr(value, "__qualname__", "")).split("."):
        target = getattr(target, name, None)
    return target


def _literal(value: Any) -> str | None:
    # text that Python evaluates to an equal value
    try:
        text = repr(value)
        return text if type(ast.literal_eval(text)) is type(value) and ast.literal_eval(text) == value else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
