"""The version and the source folder of the imported pslab, whether installed or not."""

import hashlib
from functools import cache
from pathlib import Path

__version__ = "0.1.0"
SOURCE = Path(__file__).parent
DISTRIBUTION = "pslab-workbench"  # "pslab" on the package index is another project


def install(extra: str) -> str:
    """Return the command that installs the packages of an extra, from the checkout if pslab runs from one."""
    if (SOURCE.parent / "pyproject.toml").is_file():
        return f"pip install -e '{SOURCE.parent}[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@cache
def source_digest() -> str:
    """Return eight hexadecimal digits that identify the content of pslab's files; two commits may share a version."""
    files = sorted(SOURCE.rglob("*.py"))
    content = (part for file in files for part in (file.relative_to(SOURCE).as_posix().encode(), file.read_bytes()))
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:8]
