"""What a study measures once and then reads from disk: tables in a folder that the digest of the request names.

    results/<folder>/<digest>/
        <table>.csv     one for each table of this kind of measurement
        manifest.json   what was measured, on what; written last
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd

from pslab.lab.records.disk import check_sums, find_whole, read_manifest, read_table, write_record
from pslab.lab.records.record import environment

NAMES = {"layer": "str", "rule": "str", "operation": "str"}  # a layer may be called 1


@dataclass(frozen=True)
class Measurement:
    """A completed measurement, read from its folder."""

    folder: ClassVar[str]
    tables: ClassVar[tuple[str, ...]]
    wanted: Any  #: the request; its `digest` names the record
    path: Path
    manifest: Mapping[str, Any]
    cached: bool = field(default=True, compare=False)  #: whether it existed before it was asked for

    def table(self, name: str) -> pd.DataFrame:
        """One of its tables.

        Raises:
            RecordError: it is gone, was changed, or is no table.
        """
        return read_table(self.path, name, self.manifest, NAMES)

    @classmethod
    def find(cls, wanted: Any, results: Path) -> Self | None:
        """The completed record of a request, if there is one; a damaged one is moved aside, see `find_whole`.

        Raises:
            RecordError: it cannot be opened now.
        """
        place = results / cls.folder / wanted.digest

        def read() -> dict[str, Any]:
            manifest = read_manifest(place, names := [f"{name}.csv" for name in cls.tables])
            check_sums(place, manifest, names)
            return manifest

        manifest = find_whole(read) if place.is_dir() else None
        return None if manifest is None else cls(wanted, place, manifest)

    @classmethod
    def save(cls, wanted: Any, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any], results: Path) -> Self:
        """Write a record into a draft beside its place, which takes that place when it is complete.

        Raises:
            Unwritable: the disk is full, or the place cannot be written to.
        """
        place = results / cls.folder / wanted.digest
        files = {f"{name}.csv": partial(tables[name].to_csv, index=False) for name in cls.tables}
        facts = {"digest": wanted.digest, **facts, "environment": environment()}
        return cls(wanted, place, write_record(place, facts, files), cached=False)
