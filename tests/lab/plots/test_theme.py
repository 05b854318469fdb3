"""One look everywhere: colours that every eye and a grey printer tell apart, and that never move."""

from __future__ import annotations

import colorsys
from itertools import combinations, pairwise

import numpy as np
import pytest

from pslab.config.table import ROWS
from pslab.lab.plots.charts.server_states import STATES
from pslab.lab.plots.charts.timeline import WORDS
from pslab.lab.plots.theme import DARK, OTHERS, PHASES, SEEN, Look, contrast, looks, on_dark, rgb

# how people without one kind of cone see linear RGB (Machado, Oliveira and Fernandes, 2009, severity 1)
EYES = {
    "all cones": np.eye(3),
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
FAMILIES = {"static": ["10%", "1%", "0.1%"], "std": [1, 2, 3], "dynamic": [3, 5, 8], "dgc": ["10%", "1%", "0.1%"]}


def lab(colour: str, eye: object = EYES["all cones"]) -> np.ndarray:
    """CIE L*a*b* of a colour as an eye sees it; the first entry is the lightness that is left in greyscale."""
    c = np.array(rgb(colour)) / 255
    linear = np.clip(np.array(eye) @ np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.where((r := xyz / np.array([0.9505, 1, 1.089])) > 0.008856, np.cbrt(r), 7.787 * r + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def drawn(column: str, *values: object) -> list[Look]:
    return looks([{column: value} for value in values])


#: How far apart the colours of one figure must be, and the colours by what they mean.
APART: list[tuple[int, dict[str, str]]] = [
    *((15, {name: row.colour for name, row in ROWS[kind].items()}) for kind in ("sync", "rate")),
    (15, {each: each for each in OTHERS}), (20, STATES), (20, {activity: PHASES[activity] for activity in WORDS}),
]  # fmt: skip


@pytest.mark.parametrize("eye", EYES)
def test_colours_are_told_apart_by_every_eye_and_those_of_policies_on_dark_ground_too(eye: str):
    for least, colours in APART:
        for ground in (str, on_dark) if least == 15 else (str,):
            for (one, first), (other, second) in combinations(colours.items(), 2):
                away = np.linalg.norm(lab(ground(first), EYES[eye]) - lab(ground(second), EYES[eye]))
                assert away > least, (one, other, ground)


def test_every_colour_of_a_policy_is_seen_on_dark_ground_and_keeps_its_hue():
    assert (contrast("#FFFFFF", "#000000"), contrast("#777777", "#FFFFFF")) == pytest.approx((21, 4.48), abs=0.01)
    reserved = {each for rows in ROWS.values() for row in rows.values() for each in (row.colour, *row.ramp.values())}
    for own in (*reserved - {""}, *OTHERS):
        shown = on_dark(own)
        assert contrast(shown, DARK) >= SEEN, own
        assert (shown == own) == (contrast(own, DARK) >= SEEN)
        hues = [colorsys.rgb_to_hls(*(part / 255 for part in rgb(each)))[0] for each in (own, shown)]
        assert own == "#000000" or abs((hues[0] - hues[1] + 0.5) % 1 - 0.5) < 0.04, own
    assert Look("#004488", "2px,2px", "square").dark == Look(on_dark("#004488"), "2px,2px", "square")


def test_other_names_have_colours_that_no_policy_has():
    reserved = [row.colour for rows in ROWS.values() for row in rows.values() if row.colour]
    reserved += [each for row in ROWS["prune"].values() for each in row.ramp.values()]
    assert not {*OTHERS} & {*reserved}
    assert [look.colour for look in drawn("family", "static", "std")] == list(OTHERS[:2])


def test_neighbours_in_a_stack_differ_in_lightness():
    filled = [colour for phase, colour in PHASES.items() if phase != "gap"]  # which has an outline
    for one, other in pairwise(filled):
        assert abs(lab(one)[0] - lab(other)[0]) > 12, (one, other)


def test_policy_keeps_its_look_whatever_is_beside_it():
    assert drawn("sync", "asp", "bsp") == drawn("sync", "bsp", "ssp:1", "asp")[::-2]
    assert drawn("sync", "ssp:9")[0].colour == ROWS["sync"]["ssp"].colour
    for family, values in FAMILIES.items():
        specs = [f"{family}:{value}" for value in values]
        among = drawn("prune", "none", *specs)[1:]
        assert [drawn("prune", spec) for spec in specs] == [[look] for look in among]


def test_an_own_policy_keeps_its_look_whatever_is_beside_it_and_from_its_record():
    alone, recorded = (looks([{"sync": name}])[0] for name in ("Turns(every=10)", "Turns#4f65a0b1"))
    beside = looks([{"sync": name} for name in ("bsp", "asp", "Turns(every=10)")])[2]
    assert alone == recorded == beside != looks([{"sync": "Loosening(every=10)"}])[0]
