"""The updates of QRL beside those of OGBench's unmodified class: the same first parameters and the
same batches of our draw.

  python scripts/updates/offline/compare_qrl.py --peer ogbench \
      --output results/checks/references/qrl.json

The folder `ogbench` has seohongpark/ogbench of GitHub at 1d41409.
"""

from __future__ import annotations

import functools
from typing import Any

from rljax.agents import qrl
from scripts.updates import shared
from scripts.updates.offline import goals
from scripts.updates.offline.goals import Case

METRICS = {
    "model/push": "value/d_neg_loss",
    "model/excess": "value/d_pos_loss",
    "model/far": "value/d_neg_mean",
    "multiplier/loss": "value/lam_loss",
    "multiplier/value": "value/lam",
    "actor/loss": "actor/actor_loss",
}
WITH_DYNAMICS = METRICS | {"model/error": "dynamics/dynamics_loss"}
NAMES = {"distance": "value"}
OURS, THEIRS = {"latent_size": 24}, {"latent_dim": 24}


def case(ours: dict[str, Any], theirs: dict[str, Any], metrics: dict[str, str]) -> Case:
    """Settings beside the size of features."""
    return Case(qrl, OURS | ours, THEIRS | theirs, metrics, NAMES)


CASES = {
    "QRL": case({}, {}, WITH_DYNAMICS),
    "QRL, cube": case({"imitation_weight": 0.3}, {"alpha": 0.3}, WITH_DYNAMICS),
    "QRL, mrn": case({"quasimetric": "mrn"}, {"quasimetric_type": "mrn"}, WITH_DYNAMICS),
    "QRL, awr": case(
        {"policy_loss": "awr", "inverse_temperature": 3.0},
        {"actor_loss": "awr", "alpha": 3.0},
        METRICS,
    ),
}


def main() -> None:
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, functools.partial(goals.compared, options.peer))


if __name__ == "__main__":
    main()
