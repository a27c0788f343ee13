"""The critics of a run, which attack data sets: see `rljax.datasets.tools.corruption`."""

from __future__ import annotations

from pathlib import Path

import jax

from rljax.datasets.tools.corruption import Attacker
from rljax.runs.policies import loading, policy


def load_attacker(folder: str | Path, learner: int = 0, *, best: bool = False, trust: bool = False) -> Attacker:
    """One learner of the run in `folder`, from its last checkpoint, or with `best` from its best evaluation.

    `trust` is that of `rljax.load`. Raises `ValueError` where the run has no such learner, and for everything that
    `rljax.load` refuses.
    """
    policies = loading.load_all(folder, best=best, trust=trust)
    settings = policies.settings
    policy.require_learner(settings, learner)
    state, config = jax.tree.map(lambda x: x[learner], (policies.state, policies.config))
    note = {
        "run": Path(folder).resolve().name,
        "agent": settings.agent,
        "data": settings.data,
        "training_step": policies.step,
        "training_seed": settings.seeds[learner],
    }
    return Attacker(policies.module, state, config, policies.spec, str(folder), note)
