"""The checker's paths in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pslab.engines.check.result import Next, Violation


def violation(path: Sequence[Next], workers: int, ranges: int, wrong: str, at: int = 0) -> Violation:
    """The way to a broken rule in words; every worker keeps the number that it had at the beginning.

    Args:
        path: what happened, in its order.
        workers, ranges: of the cluster.
        wrong: the rule; `<i>` is worker i, and `<self>` worker `at`, of the last state of the path.
        at: see `wrong`.
    """
    who, words = tuple(range(workers)), []
    for taken in path:
        words.append(_event(taken, who, several=ranges > 1))
        who = tuple(who[old] for old in taken.order)
    return Violation(_named(wrong, who, at), tuple(words))


def _named(text: str, who: Sequence[int], at: int) -> str:
    text = text.replace("<self>", str(who[at]))
    return re.sub(r"<(\d+)>", lambda found: str(who[int(found[1])]), text)


def _event(taken: Next, who: Sequence[int], *, several: bool) -> str:
    """One transition: what happens, then what the server does."""
    worker, move = f"worker {who[taken.who]}", taken.move
    words = _happens(worker, move.kind, move.about, several=several)
    if move.computes >= 0:
        words += f"; it computes iteration {move.computes}"
    if taken.stepped is None:
        return words
    effects = [_effect(effect, who, several=several) for effect in taken.stepped.effects]
    if not effects and move.event is not None and move.event.kind == "message" and not taken.stepped.wrong:
        effects = ["the server keeps it"]
    return "; ".join([words, *effects])


def _happens(worker: str, kind: str, about: Any, *, several: bool) -> str:
    if kind == "compute":
        return f"{worker} has computed its gradient{f' of range {about}' * several}, pushes it and asks to go on"
    if kind == "read":
        index, iteration = about
        return f"the weights{f' of range {index}' * several} for iteration {iteration} of {worker} have been read"
    if kind == "kill":
        return f"{worker} is killed"
    if kind == "leave":
        return f"the server is told that {worker} is gone"
    if kind == "rejoin":
        return f"{worker} is back"
    message = _message(worker, about, several=several)
    return {
        "deliver": f"{message} arrives",
        "overtake": f"{message} arrives before what was sent before it",
        "again": f"{message} arrives again",
        "lose": f"{message} is lost: the lease of {worker} will run out",
    }[kind]


def _message(worker: str, message: Any, *, several: bool) -> str:
    where = f" on range {message.range}" * several
    return {
        "Push": f"{worker}'s push of iteration {message.iteration}{where}",
        "Pull": f"{worker}'s request for iteration {message.iteration}{where}",
        "Weights": f"{worker}'s answer for iteration {message.iteration}{where}",
        "Ack": f"{worker}'s acknowledgement of iteration {message.iteration}{where}",
    }[type(message).__name__]


def _effect(effect: Any, who: Sequence[int], *, several: bool) -> str:
    kind = type(effect).__name__
    if kind == "Step":
        pushes = ", ".join(f"worker {who[push.worker]}'s of iteration {push.iteration}" for push in effect.pushes)
        where = f" of range {effect.range}" * several
        what = f"the mean of {pushes}" if effect.aggregate else f"it: {pushes}"
        return f"the server applies {what}, as version {effect.version}{where}"
    if kind == "Reply":
        pull = effect.pull
        where = f" on range {pull.range}" * several
        return f"the server starts worker {who[pull.worker]} with iteration {pull.iteration}{where}"
    if kind == "Discard":
        return f"the server drops worker {who[effect.push.worker]}'s push of iteration {effect.push.iteration}"
    if kind == "Searched":
        return f"the policy plans over {effect.points} point{'s' * (effect.points != 1)}"
    return f"the server refuses it: {effect.reason}"
