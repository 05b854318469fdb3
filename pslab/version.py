"""The version of this pslab, also where it was never installed, and its source folder."""

import hashlib
from functools import cache
from pathlib import Path

__version__ = "0.1.0"
SOURCE = Path(__file__).parent
DISTRIBUTION = "pslab-workbench"  # on the package index "pslab" is another project


def install(extra: str) -> str:
    """Return the command that installs the packages of an extra: from the checkout, if this is one."""
    if (SOURCE.parent / "pyproject.toml").is_file():
        return f"pip install -e '{SOURCE.parent}[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@cache
def source_digest() -> str:
    """Eight hexadecimal digits that name the files of this pslab: two commits may have one version."""
    files = sorted(SOURCE.rglob("*.py"))
    content = (part for file in files for part in (file.relative_to(SOURCE).as_posix().encode(), file.read_bytes()))
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:8]
