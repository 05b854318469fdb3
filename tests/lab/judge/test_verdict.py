"""The verdict: every valid history passes, stop rules are judged, and what cannot be judged is unknown."""

from __future__ import annotations

import handmade
import pytest
from histories import UNEVEN, assert_invalid, assert_valid, fresh, history, recorded, repeated
from hypothesis import given, settings
from hypothesis import strategies as st
from ownpolicies import ByLoss
from tiny import Dies, Diverges, tiny
from torch.nn import functional

from pslab.engines.execute import execute
from pslab.lab.judge.reading import Reading
from pslab.lab.judge.replay import replay
from pslab.lab.judge.tables import tables_of
from pslab.lab.judge.verdict import SHOWN, judge
from pslab.lab.records.results import load
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import InvalidRun, run
from pslab.policies.sync.asp import ASP

SYNCS = ("bsp", "ssp:0", "ssp:1", "ssp:3", "asp", "eager", "eager:1", "eager:2", "local:1", "local:3",
         "local:2,after=3", "backup:0", "backup:1", "backup:2")  # fmt: skip
PRUNED = {"prune": "static:5%", "pull": "changed"}


# --- valid ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [handmade.bsp, handmade.asp])
def test_histories_by_hand_are_replayed_in_one_range_and_in_two(tmp_path, made):
    two = handmade.two_ranges(made(tmp_path / "two"))
    for result, order in ((made(tmp_path), "push"), (two, "seconds")):
        pushes = result.pushes.sort_values(order, kind="stable")
        tables = {"arrivals": result.arrivals, "pushes": pushes.assign(push=range(1, len(pushes) + 1))}
        assert replay(Reading(result.run, tables, result.manifest)) == []
        assert replay(Reading(result.run.but(sync="ssp:0"), tables, result.manifest)) != []


def test_a_run_of_many_ranges_that_ends_before_most_have_come_is_valid():
    """The first frames are of the last layer, whose ranges have the highest numbers."""
    wanted = tiny(model="mlp:256", data="mnist:train=16,test=8", batch_size=1, workers=2, ranges="layers:100",
                  pushes=None, seconds=0.03, engine="virtual", cluster="lab", eval_every=10**9)  # fmt: skip
    experiment = resolve(wanted)
    tables, _, facts = tables_of(wanted, execute(experiment, lambda news: None))
    came = tables["arrivals"].range
    assert len(experiment.parts) == facts["ranges"] > 1000 + len(came)
    assert (facts["outcome"], facts["verdict"], came.max()) == ("seconds", "valid", len(experiment.parts) - 1)
    forged = {**tables, "arrivals": tables["arrivals"].assign(range=came + (came == came.max()))}
    assert_invalid(judge(wanted, forged, facts), f"range {len(experiment.parts)}, iteration")


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("ranges", ["whole", "layers"])
def test_a_policy_that_reads_losses_is_replayed_with_those_of_the_record(ranges, drops):
    """Pushes that were dropped have none there: then nothing is shown."""
    cluster = {"preset": "lab", "slow": {0: 3.0}}
    wanted = tiny(engine="virtual", cluster=cluster, sync=ByLoss(2.25, drops=drops), ranges=ranges, workers=3)
    tables, _, facts = tables_of(wanted, execute(resolve(wanted), lambda news: None))
    losses = tables["pushes"].loss
    assert losses.min() < 2.25
    if drops:
        assert (losses.max() < 2.25, facts["dropped"] > 0, facts["verdict"]) == (True, True, "unknown")
        assert facts["unjudged"] == ["the policy reads losses, and the record has none of pushes that were not applied"]
    else:
        assert (losses.max() > 2.25, facts["verdict"]) == (True, "valid")
        changed = {**tables, "pushes": tables["pushes"].assign(loss=2.0)}
        assert_invalid(judge(wanted, changed, facts), "")


@pytest.mark.one_of(6)
@pytest.mark.parametrize("engine", ["virtual", "local"])
@pytest.mark.parametrize(
    ("sync", "fields"), [("bsp", {}), ("bsp", PRUNED), ("ssp:1", PRUNED), ("asp", {}), ("eager", PRUNED),
                         ("eager:1", {}), ("local:3", {}), ("backup:1", {}),
                         ("ssp:1", {"ranges": "layers", "prune": "static:5%", "pull": "changed"}),
                         ("backup:1", {"ranges": "layers"}), ("asp", {"pushes": None, "seconds": 0.05}),
                         ("bsp", {"pushes": None, "target_accuracy": 0.2, "eval_every": 12})])  # fmt: skip
def test_runs_with_tensors_are_valid(tmp_path, recwarn, engine, sync, fields):
    cluster = {"compute_s": 0.002, "slow": {0: 3.0}}
    result = run(tiny(engine=engine, sync=sync, cluster=cluster, **fields), results=tmp_path, progress=False)
    stop = "seconds" if "seconds" in fields else "target" if "target_accuracy" in fields else "budget"
    assert (result.manifest["verdict"], result.manifest["outcome"]) == ("valid", stop)
    assert (result.manifest["dropped"] > 0) == (sync == "backup:1")
    assert not [w for w in recwarn if issubclass(w.category, InvalidRun)]
    loaded = load(result.path)
    again = recorded(loaded)
    assert (again.verdict, again.unjudged) == ("valid", ())
    assert again.checked[-1] == "the policy's decisions, replayed"


def below_zero(output, target):
    return functional.cross_entropy(output, target) - 10


def above_one(output, target):
    return 5 + output.amax(1)


def test_a_loss_and_a_metric_of_ones_own_may_be_any_numbers():
    wanted = tiny(engine="virtual", sync="asp", cluster={"compute_s": 1.0}, loss=below_zero, metric=above_one)
    outcome = execute(resolve(wanted), lambda news: None)
    tables = tables_of(wanted, outcome)[0]
    assert tables["pushes"].loss.max() < 0
    assert tables["accuracy"].accuracy.min() > 1
    assert_valid(judge(wanted, tables, outcome.facts))
    with_name = wanted.but(loss="cross_entropy", metric="accuracy")
    assert_invalid(judge(with_name, tables, outcome.facts), "has a loss of -")


@pytest.mark.parametrize(("sync", "apply_s"), [("ssp:1", 0.0), ("asp", 0.0), ("asp", 0.4)])
def test_a_run_that_diverges_is_valid(sync, apply_s):
    """While a server is busy, too: it ends what it has begun."""
    cluster = {"compute_s": 1.0, "apply_s": apply_s}
    wanted = tiny(engine="virtual", sync=sync, workers=4, model=Diverges, cluster=cluster)
    outcome = execute(resolve(wanted), lambda news: None)
    tables = tables_of(wanted, outcome)[0]
    assert outcome.facts["outcome"] == "diverged"
    assert (tables["arrivals"].seconds.max() > outcome.facts["seconds"]) == bool(apply_s)
    assert_valid(judge(wanted, tables, outcome.facts))
    lost = tables["pushes"].assign(loss=float("nan"))
    assert_invalid(judge(wanted, {**tables, "pushes": lost}, outcome.facts), "has a loss of nan")


def test_weights_in_place_are_valid(tmp_path):
    result = run(tiny(pushes=37), results=tmp_path, progress=False)  # the last round is never applied
    assert (result.manifest["verdict"], result.manifest["pushes"]) == ("valid", 36)


@pytest.mark.one_of(3)
@pytest.mark.parametrize("sync", ["eager", "asp", "backup:1"])
def test_a_run_whose_worker_dies_is_valid(sync):
    cluster = {"compute_s": 0.005, "latency_s": 0.001}
    wanted = tiny(sync=sync, model=Dies, on_death="continue", pushes=400, cluster=cluster)
    outcome = execute(resolve(wanted), lambda news: None)
    tables, _, facts = tables_of(wanted, outcome)
    assert [death["worker"] for death in facts["deaths"]] == [1]
    assert (facts["verdict"], facts.get("violations")) == ("valid", None)
    assert (tables["arrivals"].kind == "leave").sum() == 1
    hidden = judge(wanted, {**tables, "arrivals": tables["arrivals"].query("kind != 'leave'")}, facts)
    assert_invalid(hidden, "and the server was not notified")
    assert_invalid(judge(wanted, tables, {**facts, "deaths": []}), "worker 1 leaves; by the record it never leaves")


CLUSTERS = st.fixed_dictionaries(
    {"compute_s": st.just(1.0), "compute_sigma": st.sampled_from([0.0, 0.3]), "latency_s": st.sampled_from([0.0, 0.2]),
     "slow": st.dictionaries(st.integers(0, 1), st.sampled_from([0.5, 2.0, 3.0])),
     "stall_probability": st.sampled_from([0.0, 0.2]), "stall_factor": st.just(4.0),
     "apply_s": st.sampled_from([0.0, 0.03]), "message_s": st.sampled_from([0.0, 0.01]),
     "serve_s": st.sampled_from([0.0, 0.01]), "decode_s": st.sampled_from([0.0, 0.02])})  # fmt: skip


@settings(max_examples=35, deadline=None)
@given(st.sampled_from(SYNCS), CLUSTERS, st.integers(1, 5), st.integers(1, 60), st.integers(0, 9), st.booleans())
def test_every_history_of_the_timing_engine_is_valid(sync, cluster, workers, pushes, seed, timed):
    stop = {"pushes": None, "seconds": pushes / 3} if timed else {"pushes": pushes}
    cluster = {**cluster, "slow": {w: f for w, f in cluster["slow"].items() if w < workers}}
    wanted, tables, facts = history(sync, cluster, workers=workers, seed=seed, **stop)
    verdict = judge(wanted, tables, facts)
    if not facts["pushes"]:
        assert verdict.verdict == "unknown"
        return
    assert_valid(verdict)
    assert not verdict.unjudged
    assert verdict.checked[-1] == "the policy's decisions, replayed"


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SYNCS), st.sampled_from([0.0, 0.2]), st.floats(0.5, 8), st.floats(0.5, 8), st.integers(0, 2))
def test_histories_with_workers_that_join_and_leave_are_valid(sync, latency_s, leave_s, join_s, who):
    moves = {"leave": {who: leave_s}, "join": {who: join_s, (who + 1) % 3: join_s / 2}}
    if leave_s == join_s:
        return
    wanted, tables, facts = history(sync, {"compute_s": 1.0, "compute_sigma": 0.3, "latency_s": latency_s, **moves},
                                    pushes=None, seconds=12.0)  # fmt: skip
    verdict = judge(wanted, tables, facts)
    assert (verdict.verdict, verdict.violations) == ("valid" if facts["pushes"] else "unknown", ())


def test_phases_may_be_missing_only_of_a_worker_whose_process_had_them():
    wanted, tables, facts = fresh("asp")
    tables["phases"] = tables["phases"].query("worker != 2")
    assert_invalid(judge(wanted, tables, facts), "worker 2 pushed iteration 0, which was never computed")
    lost = {**facts, "phases_lost": [2]}
    assert_invalid(judge(wanted, tables, lost), "phases of worker 2 are said to be lost; none of its processes has")
    replaced = {**lost, "lives": [{"worker": 2, "iteration": 1, "seconds": 1.0, "how": "is gone"}]}
    assert_valid(judge(wanted.but(on_death="restart"), tables, replaced))


def test_a_round_of_local_steps_may_exceed_the_budget():
    wanted, tables, facts = history("local:4", pushes=30)
    assert (facts["accepted"], facts["pushes"], len(tables["pushes"])) == (32, 24, 6)  # the third round is incomplete
    assert_valid(judge(wanted, tables, facts))


# --- stop rules --------------------------------------------------------------------------------------------


def test_a_stop_at_a_target_needs_the_accuracy():
    wanted = tiny(engine="virtual", cluster={"compute_s": 1.0}, pushes=None, target_accuracy=0.2, eval_every=12)
    outcome = execute(resolve(wanted), lambda news: None)
    tables = tables_of(wanted, outcome)[0]
    assert outcome.facts["outcome"] == "target"
    assert_valid(judge(wanted, tables, outcome.facts))
    less = tables["accuracy"].assign(accuracy=0.19)
    assert_invalid(judge(wanted, {**tables, "accuracy": less}, outcome.facts), "which it never reached")


def test_a_stop_at_a_held_target_needs_a_median_of_three():
    wanted = tiny(engine="virtual", cluster={"compute_s": 1.0}, pushes=None, target_accuracy=0.2, target_held=True,
                  eval_every=12)  # fmt: skip
    outcome = execute(resolve(wanted), lambda news: None)
    tables = tables_of(wanted, outcome)[0]
    assert outcome.facts["outcome"] == "target"
    assert_valid(judge(wanted, tables, outcome.facts))
    one = tables["accuracy"].assign(accuracy=[0.1] * (len(tables["accuracy"]) - 1) + [0.9])
    assert_invalid(judge(wanted, {**tables, "accuracy": one}, outcome.facts), "a median of three of accuracy 0.2")


def test_a_server_in_virtual_time_ends_what_it_has_begun_when_its_weights_reach_the_target():
    """The pull behind the push that reached it comes over a slow link after the weights were kept."""
    wanted = tiny(engine="virtual", sync="ssp:0", cluster="lab-slow-net", workers=6, pushes=200, target_accuracy=0.6,
                  eval_every=6)  # fmt: skip
    outcome = execute(resolve(wanted), lambda news: None)
    assert outcome.facts["outcome"] == "target"
    assert_valid(judge(wanted, tables_of(wanted, outcome)[0], outcome.facts))


# --- unknown ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [(lambda tables, facts: tables.pop("pushes"), "there is no table of pushes"),
     (lambda tables, facts: tables.pop("phases"), "there is no table of phases"),
     (lambda tables, facts: tables.pop("arrivals"), "there is no table of arrivals"),
     (lambda tables, facts: tables.update(phases=tables["phases"][:0]), "the table of phases is empty"),
     (lambda tables, facts: tables["pushes"].pop("version_pulled"), "the table of pushes has no column version_pulled"),
     (lambda tables, facts: tables["phases"].pop("phase"), "the table of phases has no column phase"),
     (lambda tables, facts: facts.pop("dropped"), "the manifest has no dropped"),
     (lambda tables, facts: facts.update(outcome="interrupted"), "the run was interrupted")],
)  # fmt: skip
def test_an_incomplete_history_is_unknown(change, why):
    wanted, tables, facts = fresh("ssp:1")
    change(tables, facts)
    verdict = judge(wanted, tables, facts)
    assert verdict.verdict == "unknown"
    assert verdict.unjudged[0].startswith(why)
    assert verdict.facts() == {"verdict": "unknown", "unjudged": list(verdict.unjudged)}


@pytest.mark.parametrize(("value", "why"), [("two", "is not a number"), (0.5, "is not an integer")])
def test_an_unreadable_table_is_unknown(value, why):
    wanted, tables, facts = fresh("ssp:1")
    tables["pushes"]["worker"] = tables["pushes"].worker.astype(object)
    tables["pushes"].loc[3, "worker"] = value
    verdict = judge(wanted, tables, facts)
    assert verdict.verdict == "unknown"
    assert why in verdict.unjudged[0]


@pytest.mark.parametrize("sync", ["class Mine(ASP):\n    pass\n{}", "bps"])
def test_a_run_of_an_unknown_policy_is_judged_by_the_common_rules(sync):
    wanted, tables, facts = fresh("asp")
    wanted = wanted.but(sync=sync)
    verdict = judge(wanted, tables, facts)
    assert verdict.verdict == "unknown"
    assert "its bound and its decisions were not judged" in verdict.unjudged[0]
    assert "own pushes are read" in verdict.checked
    assert_invalid(judge(wanted, {**tables, "pushes": repeated(tables["pushes"], 7)}, facts), "is applied twice")


# --- what is reported -------------------------------------------------------------------------------------------------


class Careless(ASP):
    """A policy that claims a barrier and has none."""

    barrier = True


def test_an_invalid_run_is_recorded_and_warned_about(tmp_path):
    wanted = tiny(engine="virtual", sync=Careless(), pull="changed", cluster=UNEVEN, workers=3, pushes=12)
    with pytest.warns(InvalidRun, match="judged INVALID.*the policy claims a barrier"):
        first = run(wanted, results=tmp_path, progress=False)
    with pytest.warns(InvalidRun):
        again = run(wanted, results=tmp_path, progress=False)
    assert again.cached
    assert again.manifest["verdict"] == "invalid"
    assert 0 < len(again.manifest["violations"]) <= SHOWN
    assert again.manifest["violations"] == first.manifest["violations"]


def test_a_verdict_does_not_depend_on_the_order_of_phases():
    wanted, tables, facts = fresh("ssp:2")
    wanted = wanted.but(sync="ssp:1")
    shuffled = tables["phases"].sample(frac=1.0, random_state=1)
    assert judge(wanted, tables, facts).violations == judge(wanted, {**tables, "phases": shuffled}, facts).violations
