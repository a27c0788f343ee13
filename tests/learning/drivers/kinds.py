"""Each kind of driver in the same counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rljax.learning.drivers.embedded import EmbeddedDriver
from rljax.learning.drivers.hosted import HostedDriver
from rljax.learning.learner import Learner
from tests.helpers import counting

ON_HOST: Any = {"hosted": HostedDriver, "embedded": EmbeddedDriver}
KINDS = ["compiled", *ON_HOST]


def driven(
    kind: str,
    seeds: Sequence[int],
    iterations: int,
    module: Any = None,
    hosted: Any = None,
    limit: int = 10**6,
    base: Any = None,
    **changes: Any,
) -> Any:
    """A driver after some iterations in `hosted`, or in counters with episodes of `limit` steps."""
    if kind == "compiled":
        environment = counting.Counter(limit)
        return counting.driven(seeds, iterations, module, environment, base, **changes)
    hosted = hosted or counting.HostedCounter(limit)
    learner = Learner(module or counting.Fake(), hosted.spec, len(seeds), base=base)
    driver = ON_HOST[kind](learner, hosted, counting.settings(len(seeds), **changes))
    driver.start(seeds)
    driver.advance(iterations)
    return driver
