"""What a run consists of: an environment, a data set, or a data set and then an environment; which driver, and when."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rljax import datasets, envs
from rljax.agent import EnvSpec, RewardTransform, Transition, conditions_on_goals
from rljax.buffers import samplers
from rljax.buffers.storage import STORAGES
from rljax.distributed import processes
from rljax.envs.autoreset import AutoReset
from rljax.training import configuration, evaluation
from rljax.training.drivers.compiled import CompiledDriver
from rljax.training.drivers.driver import Driver
from rljax.training.drivers.embedded import EmbeddedDriver
from rljax.training.drivers.hosted import HostedDriver
from rljax.training.drivers.offline import OfflineDriver
from rljax.training.learner import Learner
from rljax.training.settings import Settings


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run in which experience comes from one place."""

    driver: Driver
    iteration: int  # steps of a learner in one iteration of the driver
    end: int  # the run's step at which it ends


@dataclasses.dataclass(frozen=True)
class Plan:
    """The phases of a run, in order, and how its policies are evaluated."""

    phases: list[Phase]
    evaluator: Any  # None where there is no environment
    spec: EnvSpec
    warning: str | None = None  # of what may be wrong with the data set

    @property
    def multiple(self) -> int:
        """Every phase can stop at multiples of this many steps."""
        return math.lcm(*(phase.iteration for phase in self.phases))


def plan(settings: Settings, module: Any, config: Any, stacked: Any, dataset: datasets.Dataset | None) -> Plan:
    """The phases that `settings` ask for; `stacked` is `config` over P. Nothing compiles.

    Raises `ValueError` for an agent without data, data that an agent or environment cannot use, and whatever
    environments and agents refuse.
    """
    _require_source(settings, module, config, dataset)
    number, episodes = len(settings.seeds), settings.eval_episodes
    name = configuration.environment(settings.env, config)
    offline = module.storage == "dataset"
    online = settings.then_online if offline else settings.steps
    inside = envs.make(name) if envs.is_compiled(name) else None
    if online and offline:
        _require_rate(settings, config)
    _require_inside(settings, name, online and inside is None)
    goals = conditions_on_goals(config)
    limit = _limit(settings, dataset)
    evaluator, spec = _evaluator(module, name, number, episodes, inside, dataset, goals, limit)
    if dataset is not None:
        _require_fit(dataset, spec, goals)
    if len(spec.observation_shape) != 1 and not hasattr(config, "convolutions"):
        raise ValueError(
            f"agent '{settings.agent}' observes vectors, '{name}' shows pictures of shape {spec.observation_shape}. "
            "Choose an agent whose settings have convolutions, such as stream_q."
        )
    module.check(spec, config)

    data, affine = (None, (1.0, 0.0)) if dataset is None else prepared(dataset, config)
    phases, end = [], 0
    num_envs = getattr(config, "num_envs", 1)  # of agents that never go on online there is no such setting
    each = getattr(config, "num_steps", 1) * num_envs
    if offline:
        assert data is not None
        data, of_data = (samplers.with_last_rows(data), samplers.goals) if goals else (data, samplers.resident)
        multiple = math.lcm(config.num_updates, each) if online else config.num_updates
        end = round_up(settings.steps, multiple)
        learner = Learner(module, spec, number, num_envs, of_data, storage="dataset")
        phases.append(Phase(OfflineDriver(learner, data, stacked, settings.data_on_host), config.num_updates, end))
    if online:
        kind = module.storage if dataset is None else "mixed"
        STORAGES[kind].check(config, num_envs)
        sampler, timed = _sampler(kind, config, name, inside)
        if kind == "mixed":
            share = settings.offline_share
            mixed = (
                samplers.pooled if isinstance(share, str) else functools.partial(samplers.mixed, offline_share=share)
            )
            sampler = functools.partial(mixed, affine=affine)
        learner = Learner(module, spec, number, num_envs, sampler, storage=kind, timed=timed)
        if inside is not None:
            driver: Driver = CompiledDriver(learner, inside, stacked, data)
        else:
            hosted = envs.make_hosted(name, number * num_envs, **limit)
            inside_loop = learner.streams or (jax.default_backend() == "cpu" and jax.device_count() == 1)
            driver = (EmbeddedDriver if inside_loop else HostedDriver)(learner, hosted, stacked, data)
        phases.append(Phase(driver, each, end + round_up(online, each)))
    return Plan(phases, evaluator, spec, _unlike(dataset, evaluator))


def prepared(dataset: datasets.Dataset, config: Any) -> tuple[Transition, tuple[float, float]]:
    """A data set as the agent's Config wants it, and scale and shift of its rewards (and of new ones)."""
    name: RewardTransform = getattr(config, "reward_transform", "none")
    scale, shift = datasets.reward_transform(name, dataset)
    transitions = dataset.transitions
    if (scale, shift) != (1.0, 0.0):
        transitions = transitions.replace(reward=transitions.reward * scale + shift)
    return transitions, (scale, shift)


def configured(agent: str, module: Any, env: str | None, data: str | None) -> Any:
    """The agent's Config by its presets for an environment, a data set or both; of the data no rows are read.

    What is learnt does not depend on how it is evaluated: without an environment it is the data set's own that counts,
    and a published data set is known by its file, too.
    """
    if data is None:
        return configuration.preset(agent, module, env)
    own = datasets.environment(data) if env in (None, "none") else env
    return configuration.preset(agent, module, own, data, datasets.identity(data))


def environment(agent: str, env: str | None, dataset: datasets.Dataset | None) -> str:
    """The environment of a run: `env`, or the one that matches the data set.

    Raises `ValueError` where neither names one.
    """
    if env is not None:
        return env
    if dataset is None:
        raise ValueError(f"no environment: rljax train {agent} --env Hopper-v5")
    if dataset.env is None:
        raise ValueError(
            f"data set '{dataset.name}' names no environment to evaluate in. Give --env NAME, "
            "or --env none to train without evaluations."
        )
    return dataset.env


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `number`."""
    return -(-number // multiple) * multiple


def _evaluator(
    module: Any,
    name: str,
    number: int,
    episodes: int,
    inside: AutoReset | None,
    dataset: datasets.Dataset | None,
    goals: bool,
    limit: dict[str, int],
) -> tuple[Any, EnvSpec]:
    if name == "none":
        assert dataset is not None
        size = dataset.observation_size * (2 if goals else 1)
        return None, EnvSpec(dataset.name, (size,), dataset.action_size, dataset.discrete)
    if inside is not None:
        return evaluation.CompiledEvaluator(module, inside, number), inside.spec
    hosted = envs.make_hosted(envs.evaluated(name), number * episodes, **limit)
    if episodes % hosted.num_tasks:
        raise ValueError(
            f"--eval-episodes is {episodes}, and '{hosted.name}' has {hosted.num_tasks} tasks that share them: give a "
            f"multiple, such as {round_up(episodes, hosted.num_tasks)}."
        )
    return evaluation.HostedEvaluator(module, hosted, number), hosted.spec


def _limit(settings: Settings, dataset: datasets.Dataset | None) -> dict[str, int]:
    """The time limit that a data set's own environment had, by which its reference returns are to be read.

    Where Gymnasium registers another one: D4RL's pen has half of it, the long-horizon sets have more.
    """
    if dataset is None or dataset.env != settings.env or envs.is_compiled(settings.env):
        return {}
    return {} if dataset.max_episode_steps is None else {"max_episode_steps": dataset.max_episode_steps}


def _sampler(
    kind: str, config: Any, name: str, inside: AutoReset | None
) -> tuple[Callable[..., Transition] | None, bool]:
    """What draws batches by `n_step` and `hindsight`, None without them, and whether it needs to know steps' times."""
    summed, replaced = getattr(config, "n_step", 1) > 1, np.max(getattr(config, "hindsight", 0.0)) > 0
    if not (summed or replaced):
        return None, False
    if summed and replaced:
        raise ValueError(
            "--config.n-step sums rewards that --config.hindsight would have to replace: use one of them, with "
            "--config.n-step 1 or --config.hindsight 0."
        )
    flag = "n-step" if summed else "hindsight"
    if kind != "replay":
        raise ValueError(f"--config.{flag} draws from a replay of new experience alone, not with --data.")
    if summed:
        return samplers.n_step, False
    environment = getattr(inside, "environment", None)
    if not all(hasattr(environment, part) for part in ("achieved", "desired", "relabelled", "goal_reward")):
        raise ValueError(
            f"--config.hindsight replaces goals, and the observations of '{name}' hold none. Choose an environment "
            "whose do, such as rljax/BoxPick-4x4, or --config.hindsight 0."
        )
    return functools.partial(samplers.hindsight, environment=environment), True


def _require_source(settings: Settings, module: Any, config: Any, dataset: datasets.Dataset | None) -> None:
    agent, kind = settings.agent, module.storage
    if kind not in STORAGES:
        raise ValueError(f"agent '{agent}' asks for storage '{kind}'. Known: {', '.join(STORAGES)}.")
    if kind == "dataset" and dataset is None:
        raise ValueError(f"agent '{agent}' learns from data: rljax train {agent} --data d4rl/hopper-medium-v2")
    if kind not in ("dataset", "replay") and dataset is not None:
        raise ValueError(
            f"agent '{agent}' learns from what its own policy has just done, and cannot use --data. Agents that can "
            "have storage 'dataset' or 'replay': rljax list agents"
        )
    if settings.data_on_host and (dataset is None or kind != "dataset" or settings.then_online):
        raise ValueError("--data-on-host is for learning from a data set alone: beside new experience it must fit.")
    if settings.then_online and kind != "dataset":
        raise ValueError(f"--then-online continues an agent that learns from data alone, '{agent}' is online already.")
    if settings.then_online and conditions_on_goals(config):
        raise ValueError(f"agent '{agent}' learns of goals from data alone, without --then-online.")
    if dataset is not None and dataset.provenance.get("task") is not None and conditions_on_goals(config):
        plain = f"ogbench/{dataset.provenance['id']}"
        raise ValueError(
            f"'{dataset.name}' is cut where one task is done, and agent '{agent}' learns of all goals. Use: "
            f"rljax train {agent} --data {plain}"
        )
    if settings.env == "none" and (dataset is None or settings.then_online or kind != "dataset"):
        raise ValueError("--env none is for learning from data alone; here an environment is needed.")


def _require_rate(settings: Settings, config: Any) -> None:
    """Raise `ValueError` where the actor's learning rate has fallen to 0 before the end of what is online."""
    decay = getattr(config, "decay_steps", None)
    until = np.inf if decay is None else np.min(decay)
    if until < settings.steps + settings.then_online:
        raise ValueError(
            f"the actor's learning rate of '{settings.agent}' falls to 0 at update {until:,.0f}, before the end of "
            f"{settings.steps:,} updates and {settings.then_online:,} steps online, after which it would learn "
            "nothing. Train it from the first update on with --config.decay-steps None, which keeps the rate."
        )


def _require_inside(settings: Settings, name: str, stepped_on_host: Any) -> None:
    """Raise `ValueError` for what several processes cannot share."""
    if not processes.several():
        return
    if stepped_on_host:
        raise ValueError(
            f"'{name}' is stepped on the host, several processes share environments inside the program (brax/, "
            "gymnax/, playground/, rljax/) and data sets. Its learners do not need each other: train some on each "
            f"machine, rljax train {settings.agent} --env {name} --seed S, or a grid's launches with --ray."
        )
    if settings.data_on_host:
        raise ValueError("--data-on-host keeps a data set in one machine's memory: several processes cannot share it.")


def _unlike(dataset: datasets.Dataset | None, evaluator: Any) -> str | None:
    """What to say where the actions of a data set were read in other bounds than its environment's."""
    own = getattr(getattr(evaluator, "hosted", None), "action_bounds", None)
    if dataset is None or dataset.action_bounds is None or own is None or np.allclose(dataset.action_bounds, own):
        return None
    low, high = (f"[{x[0].min():g}, {x[1].max():g}]" for x in (dataset.action_bounds, own))
    return (
        f"actions of '{dataset.name}' were read as lying in {low}, those of the environment lie in {high}. That is "
        "right if the file's are normalised; if not: rljax data convert FILE NEW --action-bounds LOW HIGH"
    )


def _require_fit(dataset: datasets.Dataset, spec: EnvSpec, goals: bool) -> None:
    """Raise `ValueError` for a data set of other shapes; with `goals`, those are observed behind its states."""
    given = {
        "observation_shape": (dataset.observation_size * (2 if goals else 1),),
        "action_size": dataset.action_size,
        "discrete": dataset.discrete,
    }
    for name, value in given.items():
        if value != getattr(spec, name):
            raise ValueError(
                f"data set '{dataset.name}' has {name} = {value}, environment '{spec.name}' has {getattr(spec, name)}. "
                "Name one that fits with --env, or none to train without evaluations."
            )
