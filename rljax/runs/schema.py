"""The fields of config.json, of each line of the records, and of summary.json."""

from __future__ import annotations

from rljax.runs.json_files import (
    FLAG,
    LISTS,
    NAME,
    NULL,
    NUMBER,
    NUMBERS,
    OBJECT,
    SETTINGS,
    TEXT,
    TEXTS,
    WHOLE,
    list_of,
    object_of,
)

FORMAT = 1  # of a run's folder; raised by what older versions cannot read

SHAPE = list_of(WHOLE)
PARTS = list_of(object_of(name=NAME, shape=SHAPE, dtype=NAME))
CONFIG = {
    "format": WHOLE,
    **dict.fromkeys(("agent", "env", "environment", "storage"), NAME),
    **dict.fromkeys(("data", "base", "from_run", "eval_env"), NAME | NULL),
    "steps": WHOLE,
    "then_online": WHOLE | NULL,
    **dict.fromkeys(("log_every", "eval_every", "eval_episodes", "keep_checkpoints"), NUMBER),
    "checkpoint_every": NUMBER | NULL,
    "offline_share": NUMBER | NAME,
    "weights": NAME,
    "without_updates": FLAG,
    **dict.fromkeys(("weights_alpha", "weights_share"), NUMBER),
    "seeds": list_of(WHOLE, least=1),
    "config": SETTINGS,
    "online": SETTINGS | NULL,
    "spec": object_of(
        {"observation_dtype": NAME, "parts": PARTS, "signals": PARTS, "choices": SHAPE},
        **{"name": NAME, "observation_shape": SHAPE, "action_size": WHOLE, "discrete": FLAG},
    ),
    "learners": list_of(object_of(seed=WHOLE, settings=SETTINGS)),
    "reference": list_of(NUMBER) | NULL,
    **dict.fromkeys(("dataset", "inherited", "spaces"), OBJECT | NULL),
    "from_parts": list_of(NAME) | NULL,
    "base_digests": list_of(TEXT) | NULL,
    "schedule": OBJECT | list_of(list_of(WHOLE | OBJECT)) | NULL,
    "state_bytes": WHOLE,
    **dict.fromkeys(("first_update", "num_envs"), WHOLE),
    **dict.fromkeys(("command", "platform", "preset", "processor", "git_revision"), TEXT | NULL),
    "precision": OBJECT | NULL,
    **dict.fromkeys(("callbacks", "loggers"), list_of(object_of(name=TEXT))),
    "resumed": list_of(object_of(step=WHOLE, command=TEXT)) | NULL,
    "versions": TEXTS | NULL,
    "code": TEXTS | NULL,
    "devices": list_of(TEXT) | NULL,
    "devices_used": list_of(WHOLE),
}
# That older runs lack.
LATER = (
    "base_digests",
    "resumed",
    "without_updates",
    "callbacks",
    "loggers",
    "first_update",
    "num_envs",
    "code",
)
NEEDED = tuple(name for name in CONFIG if name not in LATER)
LINES = {
    "metrics": {"step": WHOLE, "wall_seconds": NUMBER | NULL, "steps_per_second": NUMBER | NULL},
    "evaluations": {
        "step": WHOLE,
        "learner": WHOLE,
        "seed": WHOLE,
        "returns": NUMBERS,
        "lengths": list_of(NUMBER | NULL),
        "scores": list_of(NUMBER | NULL) | NULL,
        "success": list_of(FLAG | NUMBER | NULL) | NULL,
        "signals": LISTS | NULL,
        "wall_seconds": NUMBER | NULL,
        "random": NUMBERS,
        **dict.fromkeys(("largest_reward", "at_bounds"), NUMBER | NULL),
    },
    "changes": {"step": WHOLE},
}
NEEDED_IN_LINES = {
    "metrics": ("step",),
    "evaluations": ("step", "learner", "seed", "returns"),
    "changes": ("step",),
}
RESULTS = {
    "complete": FLAG,
    "steps": WHOLE,
    "seeds": list_of(WHOLE),
    "diverged": list_of(object_of(learner=WHOLE)),
    **dict.fromkeys(
        ("wall_seconds", "compile_seconds", "steps_per_second", "peak_memory_bytes"), NUMBER | NULL
    ),
    "random_return": NUMBER | NULL,
    "cost_limit": NUMBER,
    "checksum": WHOLE,
    "seconds": object_of(dict.fromkeys(("training", "stepping", "evaluating"), NUMBER | NULL)),
}
