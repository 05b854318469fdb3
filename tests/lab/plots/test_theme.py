"""One look everywhere: colours that every eye and a grey printer tell apart, and that never move."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import pytest

from pslab.config.run import Run
from pslab.lab.plots.theme import (
    DENSE,
    PHASES,
    RAMPS,
    SINGLE,
    SYNCS,
    Style,
    parts,
    prune_name,
    rgb,
    single,
    styles,
    sync_colour,
    sync_name,
    template,
    translucent,
)
from pslab.lab.studies.studies import pruning_runs, sync_runs

# how people without one kind of cone see linear RGB (Machado, Oliveira and Fernandes, 2009, severity 1)
EYES = {
    "all cones": np.eye(3),
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
DEFAULT_FIGURES = {
    **{family: pruning_runs(family=family) for family in RAMPS},
    "policies": sync_runs(),
    "both weights": sync_runs(push_weights=[None, 1.0]),
}


def lab(colour: str, eye: object = EYES["all cones"]) -> np.ndarray:
    """CIE L*a*b* of a colour as an eye sees it; the first entry is the lightness that is left in greyscale."""
    c = np.array(rgb(colour)) / 255
    linear = np.clip(np.array(eye) @ np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.where((r := xyz / np.array([0.9505, 1, 1.089])) > 0.008856, np.cbrt(r), 7.787 * r + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_reserved_colours_never_change():
    assert {name: colour for name, (colour, _) in SYNCS.items()} == {
        "bsp": "#004488", "ssp": "#DDAA33", "asp": "#BB5566", "dssp": "#00A08A", "elastic": "#7FC4F0",
        "eager": "#661133", "local": "#7A6A00", "backup": "#8877CC",
    }  # fmt: skip
    assert len({marker for _, marker in SYNCS.values()}) == len(SYNCS)


@pytest.mark.parametrize("eye", EYES)
def test_every_eye_tells_the_policies_apart(eye: str):
    for (a, (one, _)), (b, (other, _)) in combinations(SYNCS.items(), 2):
        assert np.linalg.norm(lab(one, EYES[eye]) - lab(other, EYES[eye])) > 15, (a, b)


@pytest.mark.parametrize("name", DEFAULT_FIGURES)
def test_curves_of_a_figure_differ_by_more_than_hue(name: str):
    for one, other in combinations(styles(DEFAULT_FIGURES[name]), 2):
        assert (one.dash, one.marker) != (other.dash, other.marker)
        if one.colour != other.colour:
            assert abs(lab(one.colour)[0] - lab(other.colour)[0]) > 8, (one, other)


def test_neighbours_in_a_stack_differ_in_lightness():
    filled = [colour for phase, colour in PHASES.items() if phase != "gap"]  # which has an outline
    for one, other in pairwise(filled):
        assert abs(lab(one)[0] - lab(other)[0]) > 12, (one, other)


def test_a_policy_has_its_colour_whatever_is_beside_it():
    few, many = styles(sync_runs(policies=["asp", "bsp"])), styles(sync_runs(policies=["bsp", "ssp:1", "ssp:9", "asp"]))
    assert few[0].colour == many[3].colour == sync_colour("asp") == SYNCS["asp"][0]
    assert few[1].colour == many[0].colour == SYNCS["bsp"][0]
    assert many[1].colour == many[2].colour == SYNCS["ssp"][0]
    assert many[1].dash != many[2].dash


@pytest.mark.parametrize(("family", "all_of_it", "one"), [
    ("static", ["10%", "1%", "0.1%"], "1%"), ("std", [1, 2, 3], 3), ("dynamic", [3, 5, 8], 5),
    ("dgc", ["10%", "1%", "0.1%"], "1%"),
])  # fmt: skip
def test_a_threshold_looks_the_same_alone_and_among_others(family: str, all_of_it: list, one: object):
    among = styles(pruning_runs(family=family, thresholds=all_of_it))
    alone = styles(pruning_runs(family=family, thresholds=[one]))
    assert among[1 + all_of_it.index(one)] == alone[1]


def test_thresholds_that_last_have_colours_of_their_own():
    modes = ["5", "mode=decay", "mode=ratchet", "mode=literal"]
    drawn = styles([Run(prune=f"dynamic:{mode}") for mode in modes])
    for field in ("colour", "marker", "dash"):
        assert len({getattr(style, field) for style in drawn}) == 4


def test_dense_and_single_machine_look_the_same_in_every_family():
    for family in RAMPS:
        drawn = styles(pruning_runs(family=family))
        assert (drawn[0], drawn[-1]) == (DENSE, SINGLE)


def test_thresholds_too_close_for_their_places_are_spread():
    drawn = styles(pruning_runs(thresholds=["1%", "0.9%", "0.8%", "0.7%"]))[1:-1]
    assert len({style.colour for style in drawn}) == 4
    assert len({(style.dash, style.marker) for style in drawn}) == 4
    assert [drawn[0].colour, drawn[-1].colour] == [RAMPS["static"][0], RAMPS["static"][2]]


def test_one_dash_for_each_push_weight_under_every_policy():
    bsp, ssp, ssp_1, asp, asp_1, _ = styles(sync_runs(push_weights=[None, 1.0]))
    assert (bsp.dash, ssp.dash, asp.dash) == ("solid", "solid", "solid")
    assert ssp_1.dash == asp_1.dash != "solid"


def test_what_differs_beside_the_threshold_gives_the_dash():
    with_residual, without = styles([Run(prune="static:1%"), Run(prune="static:1%,residual=off")])
    assert with_residual.colour == without.colour
    assert with_residual.dash != without.dash
    one, other = styles([Run(learning_rate=0.1), Run(learning_rate=0.2)])
    assert (one.colour, one.dash) != (other.colour, other.dash)


@dataclass(frozen=True)
class Mine:
    bound: int = 2
    eager: bool = False


def test_an_object_goes_by_the_name_of_its_class():
    assert sync_name(Mine()) == "Mine"
    assert sync_name(Mine(bound=5, eager=True)) == "Mine, bound 5, eager on"
    source = Run(sync=Mine()).plain()["sync"]  # what a record that is read from disk may hold
    assert parts(source)[0] == "Mine"
    assert styles([Run(sync=Mine()), Run(sync="bsp")])[1].colour == SYNCS["bsp"][0]


@pytest.mark.parametrize(("spec", "name"), [
    ("none", "dense"), ("static:10%", "static 10\u00a0%"), ("static:0.001", "static 0.1\u00a0%"),
    ("static:fraction=1%", "static 1\u00a0%"), ("std:2", "std 2\u00a0σ"), ("dynamic:5", "dynamic, 5\u00a0passes"),
    ("static:1%,residual=off", "static 1\u00a0%, no residual"), ("dgc:0.1%", "DGC 0.1\u00a0%"),
    ("dynamic:5,mode=decay", "dynamic, 5\u00a0passes, decay"), ("dynamic:mode=ratchet", "dynamic, ratchet"),
    ("dgc:1%,warm_up=0", "DGC 1\u00a0%, no warm-up"), ("dgc:warm_up=4", "DGC, warm-up 4"),
])  # fmt: skip
def test_names_of_pruning_rules(spec: str, name: str):
    assert prune_name(spec) == name


def test_names_of_policies():
    assert [sync_name(s) for s in ("bsp", "ssp:3", "ssp:staleness=4", "asp")] == [
        "BSP", "SSP, s\u00a0=\u00a03", "SSP, s\u00a0=\u00a04", "ASP"]  # fmt: skip
    told = {"dssp:3,12": "DSSP, s = 3, up to 12 more", "dssp:3,12,literal": "DSSP, s = 3, up to 12 more, literal",
            "dssp": "DSSP", "elastic:15": "ElasticBSP, R = 15", "elastic:iterations=15,predict=ewma":
            "ElasticBSP, R = 15, predict ewma", "eager": "eager pull", "eager:3": "eager pull, s = 3",
            "eager:rmw=off": "eager pull, no rmw", "local:8": "local SGD, 8 steps",
            "backup:1": "backup workers, 1 spare"}  # fmt: skip
    assert {spec: sync_name(spec).replace("\u00a0", " ") for spec in told} == told


def test_the_single_machine_is_single_only_beside_others():
    one, four = Run(workers=1), Run(workers=4)
    assert single(one, [one, four])
    assert not single(one, [one])
    assert not single(four, [one, four])


def test_template_is_for_white_paper():
    layout = template().layout
    assert (layout.paper_bgcolor, layout.plot_bgcolor) == ("white", "white")
    assert layout.xaxis.gridwidth <= 1
    assert layout.font.size >= 13


def test_translucent_and_style_defaults():
    assert translucent("#004488", 0.2) == "rgba(0, 68, 136, 0.2)"
    assert Style("#000000").dash == "solid"
