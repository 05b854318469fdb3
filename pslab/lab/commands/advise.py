"""pslab advise: prints the policy that holds a target soonest on a cluster, with reasons and a probability."""

from __future__ import annotations

import argparse
from typing import Any

from pslab.lab.commands.run import Unbroken, add_fields, asked

#: Fields of Run that the search sets itself.
SEARCHED = ("seed", "engine", "seconds", "target_accuracy", "target_held", "eval_every", "evaluate", "keep_weights",
            "schedule", "dilation")  # fmt: skip


def add(verbs: Any) -> None:
    """Add the verb, and an option for each field of Run that the search does not set."""
    parser = verbs.add_parser(
        "advise", help="the policy that holds a target soonest: pslab advise --target 0.9", formatter_class=Unbroken,
        usage="pslab advise --target VALUE [--merit NAME] [--minutes M] [--verify] "
        " [--file YAML] [--FIELD VALUE ...]",
        description="Find the policy that holds a target soonest on a cluster, in virtual time, and print it with the "
        "compared policies and the reasons. --sync, --prune and --rate give the policy that it is compared with.",
    )  # fmt: skip
    parser.add_argument("--target", type=float, required=True, help="an accuracy from 0 to 1, or a value of the metric")
    parser.add_argument("--merit", default="seconds", help="objective: least seconds, bytes or gradients (seconds)")
    parser.add_argument("--minutes", type=float, default=5.0, help="time limit; then the best answer so far (5)")
    parser.add_argument("--seeds", type=int, default=8, help="largest number of seeds; at least three decide (8)")
    parser.add_argument("--verify", action="store_true", help="run the best three and the default on real processes")
    add_fields(parser, without=SEARCHED)


def main(options: argparse.Namespace) -> int:
    """Print the advice, the table of compared policies and the remarks; return 0."""
    from pslab.lab.advise.search import advise

    advice = advise(asked(options), target=options.target, minutes=options.minutes, seeds=range(options.seeds),
                   merit=options.merit, results=options.results)  # fmt: skip
    print(advice.words.replace("minutes=", "--minutes "))
    print()
    print(advice.shown.to_string(index=False))
    print()
    print(*(f"({remark})" for remark in advice.remarks), sep="\n")
    print()
    print(f"paste this, with your own model, data and cluster: {advice.run!r}")
    if options.verify:
        print()
        print(advice.verify().to_string(float_format="%.3g"))
    return 0
