"""A git filter: of a notebook, the repository gets what a person wrote; its file keeps the outputs that they see.

Git runs this file alone, by whatever `python3` there is.
"""

import json
import sys

# a notebook's metadata, whoever saved it: Jupyter writes the version of Python and its own name of the kernel
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"}}  # fmt: skip


def without_outputs(text: str) -> str:
    """A notebook as Jupyter writes it, without what was computed."""
    notebook = json.loads(text)
    notebook["metadata"] = METADATA
    for cell in notebook["cells"]:
        cell["metadata"] = {name: value for name, value in cell["metadata"].items() if name == "tags"}
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.write(without_outputs(sys.stdin.read()))
