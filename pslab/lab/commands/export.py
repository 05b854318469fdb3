"""pslab export: writes finished runs as notebooks that execute them again, or for TensorBoard and MLflow."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

#: The command that shows an export.
VIEWS = {
    "notebook": "jupyter lab {folder}",
    "tensorboard": "tensorboard --logdir {folder}",
    "mlflow": "MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {folder}",
}


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser("export", help="finished runs as notebooks, for TensorBoard or MLflow")
    parser.add_argument("records", nargs="+", metavar="RECORD",
                        help="the digest of a run, its first digits, or the folder of a record")  # fmt: skip
    parser.add_argument("--to", required=True, metavar="TOOL", help=", ".join(VIEWS))
    parser.add_argument("--out", help="a folder (default: exports/TOOL in results/); for MLflow also a store's address")
    parser.add_argument("--results", type=Path, help="where the records are (default: results/)")


def main(options: argparse.Namespace) -> int:
    """Export the records, and print the command that shows the export; return 0."""
    from pslab.lab.records.export import export
    from pslab.lab.records.record import default_results
    from pslab.lab.records.results import load

    results = (options.results or default_results()).resolve()
    records = [load(name, results) for name in options.records]
    where = export(records, options.to, options.out or results / "exports" / options.to)
    print(f"{len(records)} in {where}; to view: {VIEWS[options.to].format(folder=where)}")
    return 0
