"""Parameters that no policy can have are refused, from a string as from an object; the words say what is allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.policies.rates import AdaGrad, DynSGD, Modulated, Split


@pytest.mark.parametrize(("kind", "text", "words"), [
    ("sync", "backup:-1", "spare=-1: must be a whole number of at least 0"),
    ("sync", "local:0", "period=0: must be a whole number of at least 1"),
    ("sync", "local:2,after=-1", "after=-1: must be"),
    ("sync", "eager:0", "must be a whole number of at least 1, or None"), ("sync", "eager:-1", "at least 1"),
    ("sync", "dssp:-1,3", "low=-1: must be a whole number of at least 0"), ("sync", "dssp:1,-3", "extra=-3"),
    ("sync", "dssp:3,12,grant=litteral", "did you mean 'literal'"),
    ("sync", "dssp:3,12,interval=start", "allowed: push, release"),
    ("sync", "dssp:3,12,cap=maybe", "cap='maybe' cannot be read"),
    ("sync", "elastic:0", "iterations=0: must be"), ("sync", "elastic:15,k=0", "k=0: must be"),
    ("sync", "elastic:15,weight=0", "weight=0.0: must be a number above 0"),
    ("sync", "elastic:15,search=optb", "did you mean 'optbs'"),
    ("sync", "elastic:15,predict=mean", "allowed: ewma, last, median"),
    ("rate", "dynsgd:version", "versions"), ("rate", "adagrad:both", "server, worker"),
    ("rate", "adagrad:server,eps=0", "eps"), ("rate", "split:fast", "staleness"), ("rate", "split:clamp=0", "clamp"),
    ("rate", "split:clamp=nan", "clamp"), ("rate", "split:clamp=inf", "clamp"), ("rate", "modulated:ofset", "offset"),
    ("rate", "modulated:offset,2", "takes"), ("rate", "constant:0.5", "no parameters"),
    ("schedule", "steps:0", "above 0"), ("schedule", "steps:1.5", "at most 1"),
    ("schedule", "steps:at=0.5/1", "shares of the budget"), ("schedule", "steps:at=", "shares|at="),
    ("schedule", "cosine:warm=-1", "at least 0|from 0"), ("schedule", "cosine:end=2", "from 0 to 1"),
    ("schedule", "cosine:warn=20", "did you mean 'warm'"), ("schedule", "cosine:warm=20,steps=20", "fewer than the 20"),
    ("schedule", "warmup:1,then=cosine:warm=2", "does not warm up itself"),
    ("schedule", "warmup", "needs epochs"), ("schedule", "warmup:0", "above 0"),
    ("schedule", "warmup:1,start=2", "start"), ("schedule", "warmup:1,then=lineer", "did you mean 'linear'"),
    ("schedule", "warmup:1,then=warmup:1", "another schedule"), ("schedule", "warmup:1,then=steps:0", "above 0"),
    ("order", "front:0", "credit=0: must be a whole number of at least 1, or None"),
    ("ranges", "layers:0", "most=0: must be a whole number of at least 1"),
    ("prune", "static:1", "1 is the whole; 1 in a hundred is 1%, and everything 100%"),
    ("prune", "static:5", "5 in a hundred is 5%"), ("prune", "dgc:fraction=1", "1%"), ("prune", "dgc:sample=10", "10%"),
])  # fmt: skip
def test_a_parameter_that_cannot_be_is_refused(kind: str, text: str, words: str):
    with pytest.raises(ConfigError, match=words):
        build(kind, text)


@pytest.mark.parametrize("make", [
    lambda: DynSGD("A"), lambda: AdaGrad("me"), lambda: Split("all"), lambda: Modulated("x"),
    lambda: AdaGrad(eps=True), lambda: Split(clamp="10"),
])  # fmt: skip
def test_objects_are_checked_as_strings_are(make: Callable[[], object]):
    with pytest.raises(ValueError, match=r"allowed|above 0"):
        make()
