"""Load the trained policies of a run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax import agent as contract
from rljax.agent import Base, EnvSpec, acting
from rljax.learning import agent_state, configuration, population, registry, schedules
from rljax.learning.named_code import named_code
from rljax.learning.settings import Settings, settings_of
from rljax.runs import arguments, checkpoints
from rljax.runs.export import packs
from rljax.runs.policies import host_policies
from rljax.runs.policies.policy import Policies, Policy
from rljax.runs.records import checked, read_config
from rljax.trust import Folder


def load_all(
    out: str | Path | Folder,
    *,
    best: bool = False,
    config: Mapping[str, Any] | None = None,
    parts: Sequence[str] = ("agent",),
) -> Policies:
    """The policies of all learners of the run in `out`: the last ones, or the `best` by evaluation.

    `out` is a run's folder, or a file of `rljax pack`.

    `config` has new values of settings that the agent's `acting` names, and classes of networks
    that only Python knows. "90%" of a return to reach is the return with this published score.
    `parts` are of `rljax.learning.named_code.PARTS`.

    Raises `ValueError` for no run, code without trust and other settings; `CheckpointError` without
    a usable checkpoint.
    """
    folder = arguments.run_folder(out)
    config = arguments.classes_again(folder, config)
    described, settings, module, trained = _read(folder, parts)
    spec = EnvSpec.read(described["spec"])
    config = _returns_of_scores(module, trained, config, described["reference"])
    changed = changed_for_acting(module, trained, config, settings.agent)
    if config:
        contract.check(module, spec, changed)
    saved = _saved(folder.path)
    values = saved.values.items()
    scheduled = {name: value for name, value in values if name not in config}
    in_steps = schedules.in_steps(module, dataclasses.replace(changed, **scheduled), settings)
    try:
        stacked = configuration.stack(in_steps, len(settings.seeds))
    except ValueError as error:
        raise ValueError(
            f"'{folder.path}' cannot be read as a run: {error} Restore its config.json from a copy."
        ) from error
    keys = jax.vmap(jax.random.key)(np.asarray(settings.seeds, np.uint32))
    inputs = module.experience(in_steps).inputs

    def create(key: Any, config: Any) -> Any:
        return agent_state.create(module, key, spec, config, inputs)

    template = jax.eval_shape(jax.vmap(create), keys, stacked)
    state = saved.restore("best" if best else "agent", template)
    if settings.base is not None:
        named = (folder.other(settings.base), len(settings.seeds), described.get("base_digests"))
        found = base(*named, spec, described["spaces"])
        state = state.replace(base=found)
    reference, spaces = described["reference"], described["spaces"]
    policies = Policies(settings, spec, module, stacked, state, saved.step, reference, spaces)
    try:
        _ = policies.spaces
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"'{folder.path}' cannot be read as a run: the spaces in its config.json are damaged "
            f"({error}). Restore it from a copy."
        ) from error
    return policies


class _Saved(NamedTuple):
    """The saved policies of a run."""

    step: int
    values: Mapping[str, Any]  # of settings by a schedule
    restore: Callable[[str, Any], Any]  # of a name and a template


def _saved(path: Path) -> _Saved:
    if path.is_file():
        notes = packs.read_notes(path)
        restore = functools.partial(packs.restore, path)
        return _Saved(notes["step"], notes.get("values") or {}, restore)
    checkpoint = checkpoints.newest(path / checkpoints.FOLDER)
    values = checkpoints.notes(checkpoint)["values"] or {}
    restore = functools.partial(checkpoints.restore, checkpoint)
    return _Saved(int(checkpoint.name), values, restore)


def load_named(folder: Folder, option: str = "--from", advice: str = "") -> Policies:
    """The last policies of an option's run. Raises `ValueError` without any."""
    try:
        return load_all(folder)
    except (ValueError, checkpoints.CheckpointError) as error:
        raise ValueError(
            f"{option} {folder.path} cannot be read: {error} Name the folder of a run that has a "
            f"checkpoint.{advice}"
        ) from error


def base(
    out: str | Path | Folder,
    number: int = 1,
    digests: Sequence[str] | None = None,
    spec: EnvSpec | None = None,
    spaces: Mapping[str, Any] | None = None,
) -> Base:
    """The policies [P] of the run in `out`, as inputs of `number` learners of another agent; or a
    policy on the host, see `host_policies`, for the environment with this `spec` and `spaces`, in
    which runs need none.

    Each learner has its own where both runs have as many, and else that of the one learner; one
    learner has the first. With `digests` [P], each has the one with its digest.

    Raises `ValueError` for other numbers, and without such a policy.
    """
    folder = arguments.run_folder(out)
    if host_policies.is_on_host(str(folder.path)):
        assert spec is not None, "a policy on the host has no spaces of its own"
        return host_policies.base(str(folder.path), number, digests, spec, spaces)
    found = _bases(folder)
    if digests is not None:
        there = population.digests_of_base(found)
        if not set(digests) <= set(there):
            raise ValueError(
                f"the policy in '{folder.path}' is not the one that this run began with: it has "
                "been trained on, or changed. Restore that folder, or start a new run. A file of "
                "`rljax pack` does not change, and --base takes it too."
            )
        return population.bases_of(found, [there.index(digest) for digest in digests])
    size = len(jax.tree.leaves(found)[0])
    if size != number and 1 not in (size, number):
        raise ValueError(
            f"--base {folder.path} has {size} learners: give --seeds {size}, or name a run of one "
            "learner."
        )
    return population.bases_of(found, list(range(number)) if size > 1 else [0] * number)


def _bases(folder: Folder) -> Base:
    """The policies [P] of all learners of a run."""
    policies = load_named(
        folder,
        "--base",
        " A run reads its base whenever it goes on or acts: where that folder is gone, restore it.",
    )
    learnt = policies.state
    return Base(
        state=learnt.state,
        config=policies.config,
        agent=policies.module,
        spec=policies.spec,
        inputs=learnt.inputs,
        statistics=learnt.statistics,
        base=learnt.base,
        remembers=policies.remembers,
    )


def load(
    out: str | Path | Folder,
    *,
    learner: int = 0,
    best: bool = False,
    config: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Policy:
    """The policy of one learner of the run, or of the packed one, in `out`: a function of
    observations, see `Policy`.

    `best`, `config` and the errors are those of `load_all`. With `trust`, the user vouches for code
    that the run names.
    """
    folder = arguments.run_folder(out, trust)
    return Policy(load_all(folder, best=best, config=config), learner)


def read_changes(
    out: str | Path | Folder, texts: Mapping[str, Sequence[str]]
) -> dict[str, list[Any]]:
    """Changed settings for acting, from the command line.

    Raises `ValueError` for other settings or texts, and where `out` is no run.
    """
    described, settings, module, config = _read(arguments.run_folder(out), ("agent",))
    values: dict[str, list[Any]] = {}
    for typed, words in texts.items():
        name = configuration.setting(config, typed)
        _require_changeable(module, config, name, settings.agent)
        flag = configuration.flag(typed)
        if not words:
            raise ValueError(f"{flag} needs a value, or several: one evaluation for each.")
        raw = [
            _returns_of_scores(module, config, {name: word}, described["reference"])[name]
            for word in words
        ]
        values[name] = [configuration.parse(config, name, str(word), flag) for word in raw]
    return values


def _returns_of_scores(
    module: Any, config: Any, changes: Mapping[str, Any], reference: Sequence[float] | None
) -> dict[str, Any]:
    """`changes`, with returns in place of scores such as "90%".

    Raises `ValueError` for another number, and without the `reference` returns of 0 and 100.
    """
    raw = dict(changes)
    for name in acting(module, config).returns:
        value = changes.get(name)
        if not (isinstance(value, str) and value.endswith("%")):
            continue
        flag = configuration.flag(name)
        try:
            share = float(value[:-1]) / 100.0
        except ValueError:
            raise ValueError(f"{flag} is '{value}': a score is a number, such as 90%.") from None
        if reference is None:
            raise ValueError(
                f"{flag} is '{value}', and the run's data have no published returns with scores 0 "
                "and 100: give a return, without %."
            )
        low, high = reference
        raw[name] = low + share * (high - low)
    return raw


def changed_for_acting(module: Any, config: Any, changes: Mapping[str, Any], agent: str) -> Any:
    """`config` with these changes. Raises `ValueError` for settings that `acting` does not name."""
    for name in changes:
        _require_changeable(module, config, name, agent)
    return configuration.replace(config, configuration.native(changes), "config")


def _require_changeable(module: Any, config: Any, name: str, agent: str) -> None:
    names = acting(module, config).names
    if name not in names:
        listed = ", ".join(map(configuration.flag, names)) or "none"
        raise ValueError(
            f"{configuration.flag(name)} cannot change once agent '{agent}' is trained. "
            f"Settings that an evaluation can change: {listed}."
        )


def _read(folder: Folder, parts: Sequence[str]) -> tuple[Mapping[str, Any], Settings, Any, Any]:
    path = folder.path
    described = checked(path, packs.read_config(path)) if path.is_file() else read_config(path)
    settings = settings_of(described)
    code = named_code(settings, described["config"], parts=parts)
    folder.require_code("config.json", code, described.get("seals"))
    module = registry.load_agent(settings.agent)
    file = folder.path / "config.json"
    config = configuration.replace(module.Config(), described["config"], f"'{file}'")
    return described, settings, module, config
