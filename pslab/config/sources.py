"""Digests of the user's modules, of data files and of the interpreter's language reference. Edited modules are refused
until they are imported again."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import sys
from functools import lru_cache
from pathlib import Path

from pslab.errors import ConfigError

_seen: dict[str, tuple[object, str]] = {}  # module -> its spec, which a reload replaces; its file's digest
_folders: dict[tuple[Path, bool], tuple[tuple[tuple[str, int], ...], str]] = {}  # time of its last change; its digest
_edits = 0  # how often a known module was edited and reloaded, or a known folder changed


def edits() -> int:
    """Return how often a module was edited and reloaded, or a folder changed: older processes have the old content."""
    return _edits


def installed(name: str) -> bool:
    """Whether name and version identify a module: it belongs to Python, to pslab or to a package from pip."""
    top = name.partition(".")[0]
    if top == "__main__":
        return False
    if top in ("pslab", "torch", "numpy") or top in sys.stdlib_module_names:
        return True
    module = sys.modules.get(top)
    folders = [str(folder) for folder in getattr(module, "__path__", ())]
    if (file := _file(top)) is not None:
        folders.append(str(file))
    return not any({"site-packages", "dist-packages"}.isdisjoint(Path(folder).parts) for folder in folders)


def of(name: str) -> dict[str, str]:
    """Return digests, by module, of the files of a module and of the user's modules that it imports, directly or not.

    Installed modules and modules without a file (a notebook) are left out.

    Raises:
        ConfigError: one of these modules was edited after this process imported it.
    """
    files: dict[str, str] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in files or installed(module) or (file := _file(module)) is None:
            continue
        content = file.read_bytes()
        files[module] = _checked(module, hashlib.sha256(content).hexdigest(), file)
        if file.suffix == ".py":
            waiting += _imports(module, content, file.name == "__init__.py")
    return dict(sorted(files.items()))


def folder(path: Path, *, content: bool = True) -> str:
    """Return a digest of the names and contents of a folder's files; "" if there is no such folder.

    Without `content`, for data larger than memory, the digest covers names, sizes and times of change instead. A
    process computes the digest again after a file was added, removed or renamed. Only a new process notices a change
    inside a file.
    """
    global _edits
    if not path.is_dir():
        return ""
    stamps = tuple(sorted((where, os.stat(where).st_mtime_ns) for where, _, _ in os.walk(path, followlinks=True)))
    before, digest = _folders.get((path, content), ((), ""))
    if stamps == before:
        return digest
    _edits += bool(before)
    sums = hashlib.sha256()
    for where, _ in stamps:
        for file in sorted(entry for entry in Path(where).iterdir() if entry.is_file()):
            sums.update(f"{file.relative_to(path)}\0{_content(file) if content else _size(file)}\0".encode())
    _folders[path, content] = stamps, sums.hexdigest()
    return sums.hexdigest()


def file(path: Path) -> str:
    """Return a digest of a file's content; "" if there is no such file."""
    return _content(path) if path.is_file() else ""


@lru_cache(maxsize=1)
def language_reference() -> bytes:
    """Return the language reference that the interpreter includes for its help(): all topics in alphabetical order,
    each followed by an empty line, in UTF-8. Each release of Python has its own text. Licence: PSF 2.

    Raises:
        ConfigError: the interpreter has no language reference, as in some distributions.
    """
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        problem = f"this interpreter has no language reference ({error}): use a Python with pydoc_data.topics"
        raise ConfigError("data", "text", problem) from None
    return "".join(f"{topics[name]}\n\n" for name in sorted(topics)).encode()


def _content(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _size(file: Path) -> str:
    status = file.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _checked(name: str, digest: str, file: Path) -> str:
    global _edits
    module = sys.modules.get(name)
    spec, before = _seen.get(name, (None, digest))
    if before != digest:
        if module is not None and spec is module.__spec__:
            problem = "was edited after it was imported: restart the kernel, or call importlib.reload"
            raise ConfigError("source", file.name, f"{problem}({name})")
        _edits += 1
    if module is not None:
        _seen[name] = module.__spec__, digest
    return digest


def _file(name: str) -> Path | None:
    # None if the module has no file, or is not found
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if module is not None else importlib.util.find_spec(name)
    except Exception:  # a parent package that cannot be imported
        return None
    origin = None if spec is None or not spec.has_location else spec.origin
    return None if origin is None or not Path(origin).is_file() else Path(origin).resolve()


@lru_cache(maxsize=256)
def _imports(name: str, content: bytes, package: bool) -> list[str]:
    modules: list[str] = []
    try:
        tree = ast.parse(content)
    except SyntaxError:  # importing the module reports the error
        return modules
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: len(name.split(".")) - node.level + package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for item in names:
            parts = item.split(".")
            modules += (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return list(dict.fromkeys(modules))
