"""A path to a violation in plain English."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pslab.engines.check.result import Next, Violation


def violation(path: Sequence[Next], workers: int, ranges: int, wrong: str, at: int = 0) -> Violation:
    """A broken rule and the path to it in words; every worker keeps the number that it had at the start.

    Args:
        path: the transitions, in order.
        workers, ranges: their numbers in the cluster.
        wrong: what is wrong; `<i>` is worker i, and `<self>` worker `at`, of the last state of the path.
        at: see `wrong`.
    """
    numbers, words = tuple(range(workers)), []
    for taken in path:
        words.append(_event(taken, numbers, several=ranges > 1))
        numbers = tuple(numbers[old] for old in taken.order)
    return Violation(_named(wrong, numbers, at), tuple(words))


def _named(text: str, numbers: Sequence[int], at: int) -> str:
    text = text.replace("<self>", str(numbers[at]))
    return re.sub(r"<(\d+)>", lambda found: str(numbers[int(found[1])]), text)


def _event(taken: Next, numbers: Sequence[int], *, several: bool) -> str:
    """One transition: what happens, then what the server does."""
    worker, move = f"worker {numbers[taken.worker]}", taken.move
    words = _happens(worker, move.kind, move.about, several=several)
    if move.computes >= 0:
        words += f"; it computes iteration {move.computes}"
    if taken.stepped is None:
        return words
    effects = [_effect(effect, numbers, several=several) for effect in taken.stepped.effects]
    if not effects and move.event is not None and move.event.kind == "message" and not taken.stepped.wrong:
        effects = ["the server holds it"]
    return "; ".join([words, *effects])


def _happens(worker: str, kind: str, about: Any, *, several: bool) -> str:
    if kind == "compute":
        return f"{worker} has computed its gradient{f' of range {about}' * several}, pushes it and pulls"
    if kind == "read":
        index, iteration, _ = about
        return f"the weights{f' of range {index}' * several} for iteration {iteration} of {worker} have been sent"
    if kind == "store":
        return f"server {about} does what it was ordered first"
    if kind == "kill":
        return f"{worker} is killed"
    if kind == "leave":
        return f"the server learns that {worker} has left"
    if kind == "rejoin":
        return f"{worker} rejoins"
    message = _message(worker, about, several=several)
    return {
        "deliver": f"{message} arrives",
        "overtake": f"{message} arrives before what was sent before it",
        "again": f"{message} arrives a second time",
        "lose": f"{message} is lost: the lease of {worker} will run out",
    }[kind]


def _message(worker: str, message: Any, *, several: bool) -> str:
    where = f" on range {message.range}" * several
    return {
        "Push": f"{worker}'s push of iteration {message.iteration}{where}",
        "Pull": f"{worker}'s pull for iteration {message.iteration}{where}",
        "Weights": f"the reply to {worker} for iteration {message.iteration}{where}",
        "Ack": f"the acknowledgement to {worker} of iteration {message.iteration}{where}",
    }[type(message).__name__]


def _effect(effect: Any, numbers: Sequence[int], *, several: bool) -> str:
    kind = type(effect).__name__
    if kind == "Step":
        pushes = ", ".join(f"worker {numbers[push.worker]}'s of iteration {push.iteration}" for push in effect.pushes)
        where = f" of range {effect.range}" * several
        what = f"the mean of {pushes}" if effect.aggregate else f"it: {pushes}"
        return f"the server applies {what}, as version {effect.version}{where}"
    if kind == "Reply":
        pull = effect.pull
        where = f" on range {pull.range}" * several
        return f"the server starts worker {numbers[pull.worker]} with iteration {pull.iteration}{where}"
    if kind == "Forget":
        return f"it forgets worker {numbers[effect.worker]}"
    if kind == "Discard":
        return f"the server drops worker {numbers[effect.push.worker]}'s push of iteration {effect.push.iteration}"
    if kind == "Searched":
        return f"the policy plans over {effect.points} point{'s' * (effect.points != 1)}"
    return f"the server refuses it: {effect.reason}"
