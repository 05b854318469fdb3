"""pslab advise: which policy holds a target soonest on a cluster, why, and how sure that is."""

from __future__ import annotations

import argparse
from typing import Any

from pslab.lab.commands.run import Unbroken, add_fields, asked

#: Fields of Run that the search sets itself.
SEARCHED = ("seed", "engine", "seconds", "target_accuracy", "target_held", "eval_every", "evaluate", "keep_weights",
            "schedule", "dilation")  # fmt: skip


def add(verbs: Any) -> None:
    """Add the verb, and an option for each field of Run that it does not search."""
    parser = verbs.add_parser(
        "advise", help="which policy holds a target soonest: pslab advise --target 0.9", formatter_class=Unbroken,
        usage="pslab advise --target VALUE [--merit NAME] [--minutes M] [--verify] "
        " [--file YAML] [--FIELD VALUE ...]",
        description="Which policy holds a target soonest on a cluster, in virtual time: the answer, what it was "
        "compared with, and why. --sync, --prune and --rate are the policy that it is compared with.",
    )  # fmt: skip
    parser.add_argument("--target", type=float, required=True, help="an accuracy from 0 to 1, or a value of the metric")
    parser.add_argument("--merit", default="seconds", help="minimize seconds, bytes or gradients (seconds)")
    parser.add_argument("--minutes", type=float, default=5.0, help="after which the best answer so far is given (5)")
    parser.add_argument("--seeds", type=int, default=8, help="at most so many; three before anything is decided (8)")
    parser.add_argument("--verify", action="store_true", help="run the best three and the default on real processes")
    add_fields(parser, without=SEARCHED)


def main(options: argparse.Namespace) -> int:
    """Print the answer, its table and its reasons. Exit status: 1 if the target is never held."""
    from pslab.lab.advise.search import advise

    advice = advise(asked(options), target=options.target, minutes=options.minutes, seeds=range(options.seeds),
                   merit=options.merit, results=options.results)  # fmt: skip
    print(advice.words)
    print()
    print(advice.shown.to_string(index=False))
    print()
    for remark in advice.remarks:
        print(f"({remark})")
    print()
    print(f"to be pasted, with a model, data and a cluster of your own: {advice.run!r}")
    if options.verify:
        print()
        print(advice.verify().to_string(float_format="%.3g"))
    return 0
