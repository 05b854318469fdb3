"""Annotated fields, policy strings, the table of names and clusters: how values are read, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import string
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from refusals import check_refused

from pslab.config.cluster import COSTS, MEASURED, PRESETS, Cluster, cluster_fields, resolve_cluster
from pslab.config.parameters import Bounds, OneOf, check, parameters
from pslab.config.run import Run
from pslab.config.spec import build, describe, import_named, make, resolve, split
from pslab.config.table import ROWS, find
from pslab.errors import ConfigError
from pslab.policies.sync.ssp import SSP


@dataclass(frozen=True)
class Some:
    share: Annotated[float, Bounds(above=0, at_most=1), "of the whole"]
    count: Annotated[int | None, Bounds(at_least=1)] = None
    size: Annotated[int | str, OneOf("fit"), Bounds(at_least=1)] = "fit"
    mode: Annotated[str, OneOf("each", "frozen")] = "each"
    masked: bool = True
    percent: Annotated[float, Bounds(at_least=0, below=100.0)] = 0.0
    grid: Annotated[int, Bounds(at_least=-1, at_most=9)] = 3
    other: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self, "some.")


OUT_OF_BOUNDS: list[tuple[dict[str, Any], str]] = [
    ({"share": 0}, "must be a number above 0 and at most 1"), ({"share": 1.5}, "above 0 and at most 1"),
    ({"share": math.nan}, "must be a number above"), ({"share": "1"}, "must be a number above"),
    ({"share": True}, "must be a number above"), ({"share": None}, "must be a number above"),
    ({"count": 0}, "must be a whole number of at least 1, or None"), ({"count": 2.0}, "must be a whole number"),
    ({"size": 0}, "must be a whole number of at least 1, or fit"), ({"size": "fitt"}, "at least 1, or fit"),
    ({"mode": "eech"}, "did you mean 'each'\\? allowed: each, frozen"), ({"mode": 3}, "allowed: each, frozen"),
    ({"masked": 1}, r"must be on \(True\) or off \(False\)"), ({"percent": 100}, "of at least 0 and below 100"),
    ({"percent": math.inf}, "must be a number of"), ({"grid": 10}, "must be a whole number from -1 to 9"),
    ({"grid": 10**400}, "must be a whole number from -1 to 9"), ({"share": 10**400}, "must be a number above 0"),
    ({"share": -(10**5000)}, "must be a number above 0"),
]  # fmt: skip


def test_a_value_out_of_type_or_bounds_is_refused_and_others_are_taken():
    check_refused((f"some.{next(iter(fields))}", functools.partial(Some, **{"share": 0.5, **fields}), words)
                  for fields, words in OUT_OF_BOUNDS)  # fmt: skip
    some = Some(share=1, count=7, size=3, mode="frozen", masked=False, other={"a": 1})
    assert (some.share, type(some.share)) == (1.0, float)
    assert dataclasses.asdict(some) == {"share": 1.0, "count": 7, "size": 3, "mode": "frozen", "masked": False,
                                        "percent": 0.0, "grid": 3, "other": {"a": 1}}  # fmt: skip


def test_text_is_read_by_the_type():
    found = parameters(Some)
    for name, text, value in (("share", "1%", 0.01), ("share", "2", 2.0), ("count", "none", None), ("count", "3", 3),
                              ("size", "fit", "fit"), ("size", "12", 12), ("mode", "each", "each"),
                              ("masked", "OFF", False), ("masked", "1", True)):  # fmt: skip
        assert found[name].read(text) == value
    for name, text in (("share", "x"), ("count", "2.5"), ("size", "big"), ("mode", "all"), ("masked", "perhaps")):
        with pytest.raises(ValueError, match=r".+"):
            found[name].read(text)
    assert list(found) == [f.name for f in dataclasses.fields(Some)]
    assert (found["share"].doc, found["percent"].shown, found["masked"].shown) == ("of the whole", "0", "on")
    assert parameters(len) == {}
    for rows in ROWS.values():
        for row in rows.values():
            assert all(parameter.doc for parameter in parameters(row.load()).values()), row.name


def test_every_row_of_the_table_checks_its_parameters_and_shows_an_example_where_one_is_missing():
    """Bounds and words are declared: what a class may forget is to check them."""
    for row in [row for rows in ROWS.values() for row in rows.values()]:
        fields = parameters(row.load()).items()
        given = build(row.kind, row.example or row.name)
        for name in [name for name, parameter in fields if parameter.choices or {int, float} & {*parameter.kinds}]:
            with pytest.raises(ConfigError, match=rf"{name}=.*: must be|{name}=.*allowed"):
                dataclasses.replace(given, **{name: object()})
        if not all(parameter.shown for _, parameter in fields):
            with pytest.raises(ConfigError, match=f"needs .*as in '{row.example}'"):
                build(row.kind, row.name)
    for kind, text in (("prune", "static:100%"), ("prune", "static:1.0"), ("sync", "elastic:15,weight=1")):
        assert build(kind, text)


def test_values_of_a_string_are_read_in_order_or_by_name_and_a_bad_string_is_refused():
    for text, some in (("some:0.5", Some(0.5)), ("SOME: 1% , 2 ", Some(0.01, 2)), ("some:share=1.0", Some(1)),
                       ("some:1%,masked=off,mode=frozen", Some(0.01, mode="frozen", masked=False))):  # fmt: skip
        assert make("field", text, Some) == some
    check_refused(("field", functools.partial(make, "field", text, Some), words) for text, words in (
        ("some", "needs share"), ("some:x", "share='x' cannot be read"), ("some:1,2,3,4,5,6,7,8,9", "got 9 values"),
        ("some:1%,masked=perhaps", "masked='perhaps'"), ("some:1%,mode=three", "allowed: each, frozen"),
        ("some:1%,speed=2", "no parameter 'speed'"), ("some:-1", "above 0"),
        ("some:1%,share=0.5", "share is given twice: as '1%' and as '0.5'")))  # fmt: skip
    assert split("a:b,c=d") == ("a", ["b"], {"c": "d"})
    assert describe(Some).startswith("share, count=None, size=fit, mode=each, masked=on")


def test_names_are_those_of_the_table_and_objects_those_that_can_do_what_their_kind_must():
    policy = SSP(2)
    assert build("sync", "SSP:3") == SSP(3)
    assert resolve("sync", policy) is policy
    assert resolve("sync", "ssp:2") == policy
    check_refused([
        ("sync", lambda: build("sync", "spp:3"), r"'spp:3': unknown name 'spp'; did you mean 'ssp'\? all"),
        ("model", lambda: build("model", "resnet"), "torchvision:NAME"),
        ("rules", lambda: build("prune", "x", "rules"), "rules='x': unknown name"),
        ("model", lambda: build("model", "cnn:3"), "cnn takes no parameters"),
        ("sync", lambda: resolve("sync", SSP),
         "is a class: give an object of it; an object for sync needs window, init"),
        ("ranges", lambda: resolve("ranges", policy), "has no cut, layered; an object for ranges needs cut, layered"),
        *((kind, functools.partial(import_named, kind, text), f"did you mean '{near}'") for kind, text, near in (
            ("model", "mpl:8", "mlp:8"), ("model", "mpl:net", "mlp:net"), ("data", "minst:train=9", "mnist:train=9"),
            ("data", "fodler:/pictures", "folder:/pictures"))),
    ])  # fmt: skip


STOPPED = {"what": "stop", "at_s": 1.0}
IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("bandwidth_bit_s", {"bandwidth_bit_s": 0}), ("compute_s", {"compute_sigma": 0.1}),
    ("bandwith_bit_s", {"bandwith_bit_s": 1e9}), ("preset", {"preset": "labs"}),
    *(("slow", {"preset": "lab", "slow": each}) for each in ({0: 0}, [2, 1], {1.5: 2.0}, {"a": 2.0})),
    ("intra_host_bandwidth_bit_s", {"per_host": 2, "intra_host_bandwidth_bit_s": 1e9}),
    ("bandwidth_of", {"bandwidth_of": {0: 0}}), ("latency_of", {"latency_of": {0: -1}}),
    ("trace", {"trace": {0: []}}), ("trace", {"trace": {0: [0.1, 0.0]}}), ("leave", {"leave": {0: 0}}),
    ("join", {"join": {-1: 3}}), ("join", {"join": {0: 3}, "leave": {0: 3}}),
    ("select_factor", {"select_factor": {"statik": 2.0}}), ("select_factor", {"select_factor": {"static": (1.0, 2.0)}}),
    *(("apply_factor", {"apply_factor": {"squares": each}}) for each in (-1.0, 3.0, ["3", 2])),
    *((f"faults{name}", {"faults": faults}) for name, faults in (
        (".what", [{"what": "kil", "iteration": 1}]), (".iteration", [{"what": "kill", "iteration": -1}]),
        ("", [{"what": "kill", "iteration": 1, "at_s": 1.0}]), ("", [{"what": "drop"}]), ("", "drop"),
        (".probabilty", [{"what": "drop", "probabilty": 0.1}]), (".direction", [{**STOPPED, "direction": "up"}]),
        (".at", [{"what": "stop", "at": 1.0}]), (".for_s", {"what": "drop", "probability": 0.1, "for_s": 0}),
        (".per_hour", [{"what": "stop", "per_hour": 1.0}]), (".wat", [{"wat": "stop", "at_s": 1.0}]))),
]  # fmt: skip


def test_impossible_clusters_are_refused():
    check_refused((f"cluster.{name}", functools.partial(resolve_cluster, fields), "") for name, fields in IMPOSSIBLE)
    check_refused([
        ("cluster", lambda: Run(cluster="labb"), "did you mean 'lab'"),
        ("cluster.bandwith_bit_s", lambda: Run(cluster={"preset": "lab", "bandwith_bit_s": 1}), "'bandwidth_bit_s'"),
        *((f"cluster.{name}", lambda name=name, at=at: Run(workers=4, cluster={"preset": "lab", name: {4: at}}),
           "no worker 4: with workers=4 use 0 to 3")
          for name, at in (("slow", 2.0), ("bandwidth_of", 1e8), ("latency_of", 0.1), ("trace", [0.1]), ("leave", 1.0),
                            ("join", 1.0))),
        ("cluster.faults", lambda: Run(cluster={"faults": [{**STOPPED, "worker": 7}]}), "no worker 7"),
        ("cluster.bandwidth_of", lambda: Run(workers=4, cluster={"per_host": 2, "bandwidth_of": {3: 1e8}}),
         "workers 2 and 3 share the link of a host"),
    ])  # fmt: skip


def test_every_preset_is_a_cluster_that_a_mapping_can_change_and_whose_costs_grow_with_the_weights():
    for name in PRESETS:
        resolve_cluster(name)
    assert resolve_cluster({"preset": "lab", "latency_s": 0.1}) == Cluster(**{**PRESETS["lab"], "latency_s": 0.1})
    lab, half = resolve_cluster("lab"), resolve_cluster({"preset": "lab", "apply_s": 1.0}, MEASURED // 2)
    assert resolve_cluster("lab", MEASURED) == lab == Cluster(**PRESETS["lab"])
    for name in COSTS:  # given ones do not
        share = {"apply_s": 1.0 / lab.apply_s, "message_s": 1.0, "search_s": 1.0}.get(name, 0.5)
        assert getattr(half, name) == pytest.approx(share * getattr(lab, name))


def test_faults_are_plain_and_links_with_faults_are_links():
    given = [{"what": "drop", "probability": 0.01}, {"what": "kill", "worker": 1, "iteration": 3}]
    assert cluster_fields({"preset": "free", "faults": given}) == {"faults": given}
    assert not resolve_cluster({"faults": [{"what": "delay", "at_s": 1.0}]}).free
    assert resolve_cluster({"faults": [STOPPED]}).free


def test_a_row_loads_and_says_what_it_is_and_its_page_cites_its_source():
    for row in [row for rows in ROWS.values() for row in rows.values()]:
        page, loaded = inspect.getdoc(row.load()) or "", row.load()
        assert page, row
        assert row.summary, row
        assert "\n" not in row.summary, row
        assert row.what or page.partition("\n")[0].endswith("."), row
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
