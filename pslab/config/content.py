"""The content of a user's object: a digest of everything that a worker would receive, equal in every process."""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import os
import sys
import types
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pslab.config import sources

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
DATA = (*PLAIN, list, tuple, dict, set, frozenset)
NAMED = (types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.MethodWrapperType,
         types.WrapperDescriptorType)  # fmt: skip
#: Attributes of a class that its author did not write, or that do not change its behaviour. Python adds some of
#: them when the class is used, as pickle adds `__slotnames__`, and Flag its combined members to the map of values.
ASIDE = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__",
                   "__abstractmethods__", "_abc_impl", "__annotate_func__", "__annotations_cache__", "__slotnames__",
                   "_value2member_map_"})  # fmt: skip
LONG = 60  # most letters of a value in a message
CODE = "code"  # the description of a function or a class
#: How code reaches the names of its module.
GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


class Unknown(Exception):
    """The content of an object cannot be determined; the message names the part and the reason."""


class Survey(NamedTuple):
    """An object's content, and parts of the object that a worker's process may lack or have with other values."""

    digest: str = ""
    unknown: str = ""  #: why the digest does not cover the whole object; "" if it does
    settings: tuple[str, ...] = ()  #: "module:name" of each global in the user's modules that its code uses
    trained: str = ""  #: the type of a tensor in it that requires a gradient, as "a Tensor"; "" without one


def content(value: object) -> str:
    """Return sixteen hexadecimal digits that name a value by its content, not by its address or source line.

    They cover the code, defaults and closure of a user's function or class and the globals that it uses, the name of an
    installed object (of torch or pslab), and the numbers of a tensor or an array.

    Raises:
        Unknown: a part exists in this process alone (a lock, an open file, a generator).
        ConfigError: a module of the user that the value reaches was edited after it was imported.
    """
    surveyed = survey(value)
    if surveyed.unknown:
        raise Unknown(surveyed.unknown)
    return surveyed.digest


def survey(value: object) -> Survey:
    """Return the survey of a value: its content, and the settings that its code uses.

    Raises:
        ConfigError: a module of the user that the value reaches was edited after it was imported.
    """
    walk = _Walk()
    try:
        digest = walk.of(value)
    except RecursionError:
        return Survey(unknown=f"a {type(value).__qualname__} is nested too deeply", settings=(*sorted(walk.settings),))
    return Survey(digest.hex()[:16], walk.unknown, (*sorted(walk.settings),), walk.trained)


def settings_of(module: types.ModuleType, wanted: Container[str] | None = None) -> dict[str, tuple[str, str]]:
    """Return a digest and a description of each global of a module and each attribute of its classes, or only of the
    `wanted` names.

    The digest of a function covers its source lines and defaults, the digest of a class its bases; the globals that
    they use have their own names in the result. A digest is "" if the content of a value is unknown.
    """
    pairs = dict[str, object]()
    waiting: list[tuple[str, Mapping[str, object]]] = [(f"{module.__name__}:", vars(module))]
    while waiting:
        prefix, values = waiting.pop()
        for name, value in list(values.items()):
            if not (name.startswith("__") and prefix.endswith(":")) and name not in ASIDE:
                pairs[prefix + name] = value
                if isinstance(value, type) and f"{value.__module__}:{value.__qualname__}" == prefix + name:
                    waiting.append((f"{prefix}{name}.", vars(value)))
    return {name: (_shallow(value), _described(value)) for name, value in pairs.items()
            if wanted is None or name in wanted}  # fmt: skip


def _shallow(value: object) -> str:
    walk = _Walk(deep=False)
    try:
        digest = walk.of(value).hex()[:16]
    except Exception:  # of an object that no run uses
        return ""
    return "" if walk.unknown else digest


def _described(value: object) -> str:
    if isinstance(value, (type, types.FunctionType, staticmethod, classmethod, property)):
        return CODE
    try:
        text = repr(value)
    except Exception:  # of a user's class
        text = ""
    return text if 0 < len(text) <= LONG and " at 0x" not in text else f"another {type(value).__name__}"


class _Walk:
    """Computes the digest of a value, by a walk through all objects that it refers to."""

    def __init__(self, *, deep: bool = True) -> None:
        self._deep = deep  # whether functions and classes include what they reach
        self._known: dict[int, tuple[object, bytes]] = {}  # objects kept alive, so that ids stay unique
        self._above: list[int] = []
        self.unknown, self.trained, self.settings = "", "", set[str]()

    def of(self, value: object) -> bytes:
        """Return the digest of a value and of all that it refers to."""
        if type(value) in PLAIN:
            return _digest(type(value).__name__, [repr(value).encode()])
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._above:
            return _digest("above", [str(len(self._above) - self._above.index(id(value))).encode()])
        self._above.append(id(value))
        try:
            kind, parts = self._parts(value)
            digest = _digest(kind, parts)
        finally:
            self._above.pop()
        self._known[id(value)] = value, digest
        return digest

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
            if getattr(value, "requires_grad", False) and not self.trained:
                self.trained = f"a {kind.__name__}"
            return "numbers", [*numbers, *self._all([getattr(value, "__dict__", {})])]
        if isinstance(value, types.ModuleType):
            if not self._deep:
                return "module", self._all([value.__name__])
            data = self._attributes(value, {name for name, part in vars(value).items()
                                            if isinstance(part, DATA) and not name.startswith("_")})  # fmt: skip
            return "module", self._all([value.__name__, *sources.of(value.__name__).items(), *data.items()])
        if isinstance(value, (types.FunctionType, type)) and _has_its_name(value):
            if sources.installed(value.__module__):
                return "installed", self._all([value.__module__, value.__qualname__])
            self._set(value.__module__, value.__qualname__)
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
        reached = self._reached(value) if self._deep and not sources.installed(str(value.__module__)) else {}
        return self._all([value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__ or (),
                          reached, vars(value)])  # fmt: skip

    def _reached(self, value: types.FunctionType) -> dict[str, Any]:
        # globals that the code of a function reads, nested code included, and the modules that it imports
        sources.of(value.__module__)  # refused if edited since
        names, imported, attributes = set[str](), set[str](), set[str]()
        for code in _codes(value.__code__):
            attributes.update(code.co_names)
            for step in dis.get_instructions(code):
                if step.opname in GLOBALS:
                    names.add(str(step.argval))
                elif step.opname == "IMPORT_NAME" and step.argval:
                    imported.add(str(step.argval))
        values = {name: value.__globals__[name] for name in sorted(names) if name in value.__globals__}
        for name in values:
            self._set(value.__module__, name)
        mine = {name: part for name, part in values.items()
                if isinstance(part, types.ModuleType) and not sources.installed(part.__name__)}  # fmt: skip
        modules = [*mine.values(), *(sys.modules[name] for name in sorted(imported) if name in sys.modules)]
        for module in modules:
            values |= self._attributes(module, attributes)
        values |= {name: part.__name__ for name, part in mine.items()}
        imported |= {part.__name__ for part in mine.values()}
        return values | {f"import {name}": sources.of(name) for name in sorted(imported)}

    def _attributes(self, module: types.ModuleType, names: set[str]) -> dict[str, Any]:
        # values of these names in a module of the user's, and in the user's modules that they refer to
        values, waiting = dict[str, Any](), [module]
        while waiting:
            module = waiting.pop()
            if sources.installed(module.__name__) or f"{module.__name__}:" in values:
                continue
            values[f"{module.__name__}:"] = None
            for name in sorted(names & vars(module).keys()):
                part = vars(module)[name]
                if isinstance(part, types.ModuleType):
                    waiting.append(part)
                else:
                    values[f"{module.__name__}:{name}"] = part
                    self._set(module.__name__, name)
        return values

    def _set(self, module: str, name: str) -> None:
        # note the names that are read from a module that workers import anew
        if module != "__main__" and name[0] != "@" and module in sources.of(module):  # not pytest's names
            self.settings.add(f"{module}:{name}")

    def _class(self, value: type) -> list[bytes]:
        parts = {name: part for name, part in sorted(vars(value).items())
                 if name not in ASIDE and (name, part) != ("__annotations__", {})}  # fmt: skip
        if _has_its_name(value):
            for name in parts:
                self._set(value.__module__, f"{value.__qualname__}.{name}")
        return self._all([type(value), value.__qualname__, value.__bases__, parts if self._deep else {}])

    def _code(self, code: types.CodeType) -> list[bytes]:
        # All that decides the behaviour, without the position in a file; or the position alone, as tools such as pytest
        # compile different code from the same lines when they import a module.
        if not self._deep:
            return self._all([os.path.basename(code.co_filename), code.co_firstlineno, code.co_name])
        return self._all([code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars,
                          code.co_cellvars, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount,
                          code.co_flags, code.co_exceptiontable])  # fmt: skip

    def _reduced(self, value: Any) -> list[bytes]:
        # the parts that a pickle of the object would contain
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            made = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception as error:
            return self._unknown(f"a {type(value).__qualname__} in it cannot be sent to another process ({error})")
        if isinstance(made, str):
            if not sources.installed(str(getattr(value, "__module__", type(value).__module__))):
                return self._unknown(f"a {type(value).__qualname__} in it is known by its name {made!r} alone")
            return self._all([type(value).__module__, made])
        build, arguments, *rest = made
        state, items, pairs = [*rest, None, None, None][:3]
        if isinstance(state, dict):  # a cached property is computed anew
            state = {name: part for name, part in state.items()
                     if not isinstance(getattr(type(value), str(name), None), functools.cached_property)}  # fmt: skip
        return self._all([build, arguments, state, list(items or ()), list(pairs or ())])

    def _unknown(self, why: str) -> list[bytes]:
        # note that a part has no known content; the walk continues, so that the remaining parts are surveyed, too
        self.unknown = self.unknown or why
        return []


def _digest(kind: str, parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256(f"{kind}\0".encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _numbers(value: Any) -> list[bytes] | None:
    """Return a tensor's or an array's type, shape and bytes; None for other values. Imports neither torch nor numpy."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor) and torch.nn.parameter.is_lazy(value):
        return [type(value).__qualname__.encode()]  # a lazy tensor has no numbers yet: the run refuses it
    if torch is not None and isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta:
        form = f"{type(value).__qualname__} {value.dtype} {tuple(value.shape)} {value.requires_grad}"
        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        return [form.encode(), flat.view(torch.uint8).numpy().tobytes()]
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return [f"{value.dtype.descr} {value.shape}".encode(), value.tobytes()]
    return None


def _has_its_name(value: Any) -> bool:
    # a pickle of such a function or class contains its name alone
    named: Any = sys.modules.get(str(value.__module__))
    for name in value.__qualname__.split("."):
        named = getattr(named, name, None)
    return named is value


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
