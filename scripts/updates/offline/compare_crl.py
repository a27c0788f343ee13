"""The updates of CRL beside those of OGBench's unmodified class: the same first parameters and the
same batches of our draw.

  python scripts/updates/offline/compare_crl.py --peer ogbench \
      --output results/checks/references/crl.json

The folder `ogbench` has seohongpark/ogbench of GitHub at 1d41409. Its class has the binary loss
alone.
"""

from __future__ import annotations

import functools

from rljax.agents import crl
from scripts.updates import shared
from scripts.updates.offline import goals
from scripts.updates.offline.goals import Case

ACTOR = {"actor/loss": "actor/actor_loss"}
CRITIC = ACTOR | {
    f"critic/{ours}": f"critic/{theirs}"
    for ours, theirs in {
        "loss": "contrastive_loss",
        "positive": "logits_pos",
        "negative": "logits_neg",
        "accuracy": "categorical_accuracy",
    }.items()
}
VALUE = CRITIC | {"value/loss": "value/contrastive_loss"}
WIDE = {"latent_size": 24}
CASES = {
    "CRL": Case(crl, WIDE, {"latent_dim": 24}, CRITIC),
    "CRL, cube": Case(
        crl, {**WIDE, "imitation_weight": 3.0}, {"latent_dim": 24, "alpha": 3.0}, CRITIC
    ),
    "CRL, awr": Case(
        crl,
        {**WIDE, "policy_loss": "awr", "inverse_temperature": 3.0},
        {"latent_dim": 24, "actor_loss": "awr", "alpha": 3.0},
        VALUE,
    ),
}


def main() -> None:
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, functools.partial(goals.compared, options.peer))


if __name__ == "__main__":
    main()
