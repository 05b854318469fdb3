"""The table of names: every row loads, and says what it is."""

from __future__ import annotations

import dataclasses
import inspect
import string
import subprocess
import sys

import pytest

from pslab.config.table import ROWS, find


def test_a_row_loads_and_says_what_it_is_and_its_page_cites_its_source():
    for row in [row for rows in ROWS.values() for row in rows.values()]:
        page, loaded = inspect.getdoc(row.load()) or "", row.load()
        assert page, row
        assert row.summary, row
        assert "\n" not in row.summary, row
        assert not row.example or find(row.kind, row.example) is row
        if row.source:
            assert row.source.split()[0] in page, row
            assert row.source.rpartition(" ")[2].rstrip(")") in page, row
        said = [name for _, name, _, _ in string.Formatter().parse(row.label) if name]
        assert not said or said == [f.name for f in dataclasses.fields(loaded)][: len(said)], row


@pytest.mark.parametrize("kind", ["sync", "order"])
def test_reserved_colours_and_markers_are_distinct(kind: str):
    rows = ROWS[kind].values()
    assert len({row.colour for row in rows}) == len(rows)
    markers = [row.marker for row in rows if row.marker]
    assert len(set(markers)) == len(markers)


def test_find_knows_strings_and_objects_and_not_a_users_class():
    @dataclasses.dataclass(frozen=True)
    class SSP:
        staleness: int = 3

    row = ROWS["sync"]["ssp"]
    assert find("sync", " SSP:3") is row
    assert find("sync", row.load()(3)) is row
    assert find("sync", SSP()) is None
    assert find("sync", "nothing:3") is None


def test_the_table_needs_no_torch():
    code = "import sys, pslab.config.table; assert not {'torch', 'numpy', 'pslab.policies'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
