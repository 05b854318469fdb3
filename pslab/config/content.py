"""The content of a user's object: a digest of all that a worker would get of it, the same in every process."""

from __future__ import annotations

import copyreg
import dis
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from pslab.config import sources

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
NAMED = (types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.MethodWrapperType,
         types.WrapperDescriptorType)  # fmt: skip
#: What a class has beside what its author wrote, or that says nothing about what it does.
ASIDE = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__",
                   "__abstractmethods__", "_abc_impl", "__annotate_func__", "__annotations_cache__"})  # fmt: skip
#: How code reaches the names of its module.
GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


class Unknown(Exception):
    """The content of an object cannot be known; the message names the part and the reason."""


def content(value: object) -> str:
    """Sixteen hexadecimal digits that name what a value holds, and not where it lies or was written.

    Functions and classes of the user are their code, defaults, closures and the globals that they reach; what is
    installed (torch, pslab) is its name; tensors and arrays are their numbers.

    Raises:
        Unknown: a part is known to this process alone (a lock, an open file, a generator).
        ConfigError: a module of the user that is reached was edited after it was imported.
    """
    try:
        return _Walk().of(value).hex()[:16]
    except RecursionError as error:
        raise Unknown(f"a {type(value).__qualname__} is nested too deeply") from error


class _Walk:
    """One walk through a value and all that it reaches."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}  # the objects too: an id is theirs while they live
        self._above: list[int] = []

    def of(self, value: object) -> bytes:
        """The digest of a part."""
        if type(value) in PLAIN:
            return _digest(type(value).__name__, [repr(value).encode()])
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._above:
            return _digest("above", [str(len(self._above) - self._above.index(id(value))).encode()])
        self._above.append(id(value))
        try:
            kind, parts = self._parts(value)
            found = _digest(kind, parts)
        finally:
            self._above.pop()
        self._known[id(value)] = value, found
        return found

    def _all(self, values: Iterable[object]) -> list[bytes]:
        return [self.of(value) for value in values]

    def _parts(self, value: Any) -> tuple[str, list[bytes]]:
        kind = type(value)
        if kind in (list, tuple):
            return kind.__name__, self._all(value)
        if kind in (dict, types.MappingProxyType):
            return "dict", self._all(part for item in value.items() for part in item)
        if kind in (set, frozenset):
            return kind.__name__, sorted(self._all(value))
        if (numbers := _numbers(value)) is not None:
            return "numbers", [*numbers, *self._all([getattr(value, "__dict__", {})])]
        if isinstance(value, types.ModuleType):
            return "module", self._all([value.__name__, *sources.of(value.__name__).items()])
        if isinstance(value, (types.FunctionType, type)) and _is_installed(value):
            return "installed", self._all([value.__module__, value.__qualname__])
        if isinstance(value, types.FunctionType):
            return "function", self._function(value)
        if isinstance(value, type):
            return "class", self._class(value)
        return self._object(value)

    def _object(self, value: Any) -> tuple[str, list[bytes]]:
        if isinstance(value, types.CodeType):
            return "code", self._code(value)
        if isinstance(value, types.CellType):
            return "cell", self._all(_held(value))
        if isinstance(value, (staticmethod, classmethod)):
            return type(value).__name__, self._all([value.__func__])
        if isinstance(value, property):
            return "property", self._all([value.fget, value.fset, value.fdel])
        if isinstance(value, types.MethodType):
            return "method", self._all([value.__func__, value.__self__])
        if isinstance(value, NAMED):
            return "descriptor", self._all([value.__qualname__])
        if isinstance(value, types.BuiltinFunctionType):
            owner = value.__self__
            return "builtin", self._all([value.__module__, value.__qualname__,
                                         None if isinstance(owner, types.ModuleType) else owner])  # fmt: skip
        if isinstance(wrapped := getattr(value, "__wrapped__", None), types.FunctionType):  # functools.lru_cache
            return type(value).__qualname__, self._all([wrapped])
        return "object", self._reduced(value)

    def _function(self, value: types.FunctionType) -> list[bytes]:
        reached = {} if sources.installed(str(value.__module__)) else self._reached(value)
        return self._all([value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__ or (),
                          reached, vars(value)])  # fmt: skip

    def _reached(self, value: types.FunctionType) -> dict[str, Any]:
        """The globals that a function's code reaches, with the code in it; the modules that it imports."""
        sources.of(value.__module__)  # refused if edited since
        names, imported = set[str](), set[str]()
        for code in _codes(value.__code__):
            for step in dis.get_instructions(code):
                if step.opname in GLOBALS:
                    names.add(str(step.argval))
                elif step.opname == "IMPORT_NAME" and step.argval:
                    imported.add(str(step.argval))
        found = {name: value.__globals__[name] for name in sorted(names) if name in value.__globals__}
        return found | {f"import {name}": sources.of(name) for name in sorted(imported)}

    def _class(self, value: type) -> list[bytes]:
        held = {name: part for name, part in sorted(vars(value).items()) if name not in ASIDE}
        return self._all([type(value), value.__qualname__, value.__bases__, held])

    def _code(self, code: types.CodeType) -> list[bytes]:
        """The parts of a code object that decide what it does; not where it was written."""
        return self._all([code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars,
                          code.co_cellvars, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount,
                          code.co_flags, code.co_exceptiontable])  # fmt: skip

    def _reduced(self, value: Any) -> list[bytes]:
        """The parts of an object that a pickle would hold."""
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            made = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception as error:
            raise Unknown(f"a {type(value).__qualname__} in it cannot be sent to another process ({error})") from error
        if isinstance(made, str):
            if not sources.installed(str(getattr(value, "__module__", type(value).__module__))):
                raise Unknown(f"a {type(value).__qualname__} in it is known by its name {made!r} alone")
            return self._all([type(value).__module__, made])
        build, arguments, *rest = made
        state, items, pairs = [*rest, None, None, None][:3]
        return self._all([build, arguments, state, list(items or ()), list(pairs or ())])


def _digest(kind: str, parts: Iterable[bytes]) -> bytes:
    found = hashlib.sha256(f"{kind}\0".encode())
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def _numbers(value: Any) -> list[bytes] | None:
    """A tensor's or an array's kind, form and bytes; None of anything else. Imports neither torch nor numpy."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta:
        form = f"{type(value).__qualname__} {value.dtype} {tuple(value.shape)} {value.requires_grad}"
        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        return [form.encode(), flat.view(torch.uint8).numpy().tobytes()]
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return [f"{value.dtype.descr} {value.shape}".encode(), value.tobytes()]
    return None


def _is_installed(value: Any) -> bool:
    """Whether a function or class is found under its own name in a module that is not the user's."""
    if not sources.installed(str(value.__module__)):
        return False
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _held(cell: types.CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
