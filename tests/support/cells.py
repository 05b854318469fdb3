"""Cells of a notebook that differ in one number, wherever code and objects can hold one."""

from __future__ import annotations

from typing import Any

from pslab.config.content import content

#: What holds the number -> a cell that defines `factory`, or the class `Net`.
CELLS = {
    "class": "class Net:\n    size = {}\n    def __init__(self, wide=3):\n        self.wide = wide\n",
    "constant": "SIZE = {}\ndef factory():\n    return [SIZE]\n",
    "through a function": "SIZE = {}\ndef inner():\n    return SIZE\ndef factory():\n    return inner()\n",
    "in a nested function": "SIZE = {}\ndef factory():\n    return [SIZE for _ in range(2)] + (lambda: SIZE)()\n",
    "closure": "def outside(size):\n    def inner():\n        return size\n    return inner\nfactory = outside({})\n",
    "default": "def factory(size={}):\n    return size\n",
    "default by name": "def factory(*, size={}):\n    return size\n",
    "constant of the code": "def factory():\n    return {}\n",
    "partial": "import functools\ndef make(size):\n    return size\nfactory = functools.partial(make, {})\n",
    "method": "class Net:\n    size = {}\n    def make(self):\n        pass\nfactory = Net().make\n",
    "base": "class Base:\n    size = {}\nclass factory(Base):\n    pass\n",
    "property": "class factory:\n    @property\n    def size(self):\n        return {}\n",
    "static": "class factory:\n    @staticmethod\n    def size():\n        return {}\n",
    "slots": "class Net:\n    __slots__ = ('size',)\nfactory = Net()\nfactory.size = {}\n",
    "set": "def factory(x):\n    return x in {{'a', 'b', {}}}\n",
    "cached": "import functools\n@functools.lru_cache\ndef factory():\n    return {}\n",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass Net:\n    size: int = {}\nfactory = Net()\n",
    "itself": "def factory(n=3):\n    return factory(n - 1) if n else {}\n",
}  # fmt: skip


def of_cell(text: str) -> Any:
    """What a notebook's cell leaves: code without a file."""
    module: dict[str, Any] = {"__name__": "__main__"}
    exec(text, module)
    return module.get("factory") or module["Net"]


def of_all_cells() -> list[str]:
    return [content(of_cell(cell.format(4))) for cell in CELLS.values()]
