"""The updates of agents with goals beside OGBench's unmodified classes: the same first parameters
and the same batches of our draw.

  python scripts/updates/offline/compare_ogbench.py --peer ogbench \
      --output results/checks/references/ogbench.json

The folder `ogbench` has seohongpark/ogbench of GitHub at 1d41409. Targets of its classes follow the
networks from before a step. Those of GCIQL follow the new ones, as its page says: here its
authors' do, too.
"""

from __future__ import annotations

import functools

from rljax.agents import gcbc, gciql, gcivl, hiql
from scripts.updates import shared
from scripts.updates.offline import goals
from scripts.updates.offline.goals import Case

VALUE = {"value/loss": "value/value_loss"}
ACTOR = {"actor/loss": "actor/actor_loss"}
CRITICS = VALUE | {"critic/loss": "critic/critic_loss"} | ACTOR

LEVELS = VALUE | {f"{x}_actor/loss": f"{x}_actor/actor_loss" for x in ("low", "high")}

CASES = {
    "GCBC": Case(gcbc, {}, {}, ACTOR),
    "GCIVL": Case(gcivl, {}, {}, VALUE | ACTOR),
    "GCIVL, another expectile": Case(
        gcivl,
        {"expectile": 0.6, "inverse_temperature": 1.0},
        {"expectile": 0.6, "alpha": 1.0},
        VALUE | ACTOR,
    ),
    "GCIQL": Case(gciql, {}, {}, CRITICS, new_targets=("critic",)),
    "GCIQL, awr": Case(
        gciql,
        {"policy_loss": "awr", "inverse_temperature": 3.0},
        {"actor_loss": "awr", "alpha": 3.0},
        CRITICS,
        new_targets=("critic",),
    ),
    "HIQL": Case(hiql, {"subgoal_steps": 5}, {}, LEVELS, {"representation": "goal_rep"}),
    "HIQL, stitched goals": Case(
        hiql,
        {"actor_goal_future": 0.5, "high_inverse_temperature": 1.0, "expectile": 0.9},
        {"high_alpha": 1.0, "expectile": 0.9},
        LEVELS,
        {"representation": "goal_rep"},
    ),
}


def main() -> None:
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, functools.partial(goals.compared, options.peer))


if __name__ == "__main__":
    main()
