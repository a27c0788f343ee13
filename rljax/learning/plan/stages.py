"""The stages of a training and their drivers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax import agent as contract
from rljax import datasets, envs
from rljax.agent import Base, EnvSpec, Transition, difference
from rljax.buffers import with_weights
from rljax.buffers.rows import AS_STORED, RewardMap
from rljax.envs import signals
from rljax.envs.autoreset import AutoReset
from rljax.envs.goals import goals_of
from rljax.envs.host.hosted import Hosted
from rljax.learning import configuration, evaluation, schedules
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.drivers.driver import Driver
from rljax.learning.drivers.embedded import EmbeddedDriver
from rljax.learning.drivers.hosted import HostedDriver
from rljax.learning.drivers.offline import OfflineDriver
from rljax.learning.learner import Learner
from rljax.learning.plan import memory, refusals
from rljax.learning.plan.experiment import (
    Experiment,
    OnlineExperience,
    WeightedExperience,
    prepared,
)
from rljax.learning.settings import WEIGHTS, share_of
from rljax.learning.terminal_values import TerminalValues, terminal_values
from rljax.trust import note


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a run with one source of experience."""

    driver: Driver
    config: Any  # the agent's Config, as given: settings may be shares of the run
    iteration: int  # steps of a learner in an iteration
    end: int  # the run's step at which the stage ends
    num_envs: int  # of each learner; 0 for a data set alone


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """A run's stages, in order, and the evaluator of its policies."""

    stages: list[Stage]
    evaluator: Any  # None where there is no environment
    spec: EnvSpec
    spaces: dict[str, Any] | None  # the environment's own, see `_described_spaces`
    base: Base | None = None  # other runs' policies [P]
    warnings: tuple[str, ...] = ()  # about the data set and learning rates
    terminal: TerminalValues | None = None  # metrics of the data set's terminal rows
    weights: dict[str, Any] | None = None  # see `Data`

    @property
    def multiple(self) -> int:
        """Every stage can stop at multiples of so many steps."""
        return math.lcm(*(stage.iteration for stage in self.stages))


def plan(experiment: Experiment) -> TrainingPlan:
    """Plan the stages that the settings ask for. Nothing compiles.

    Raises `ValueError` for everything that agents, data and environments refuse.
    """
    settings, module, dataset = experiment.settings, experiment.module, experiment.dataset
    experience = experiment.experience
    experience.check()
    refusals.require_source(experiment, experience)
    updates, steps_online = experience.stages(settings.steps, settings.then_online)
    if updates and steps_online:
        schedules.require_rate(module, experiment.config, settings)
    name = envs.observed(settings.env, experience.observes)
    inside = envs.make(name) if envs.is_compiled(name) else None
    refusals.require_shared(settings, name, bool(steps_online) and inside is None)
    memory.require_environments(settings, experience, inside is None)
    places = _places(experiment, name, inside)
    spaces = _described_spaces(experiment, places)
    # Reading it starts JAX, which `prefer_devices` must precede.
    base = None if experiment.load_base is None else experiment.load_base(places.spec, spaces)
    _check_spaces(experiment, places.spec, name, base)

    data = _data(experiment)
    stages: list[Stage] = []
    online = _online(experiment, places, data, name) if steps_online else None
    if updates:
        stages.append(_stage_of_data(experiment, places.spec, data, online, base))
    if online is not None:
        end = round_up(steps_online, online.iteration) + (stages[0].end if stages else 0)
        stages.append(_stage_online(experiment, places, data.transitions, online, end, base))
    warnings = (
        refusals.other_bounds(dataset, places.hosted),
        schedules.early_end(module, experiment.config, settings),
    )
    result = TrainingPlan(
        stages=stages,
        evaluator=places.evaluator,
        spec=places.spec,
        spaces=spaces,
        base=base,
        warnings=tuple(warning for warning in warnings if warning is not None),
        terminal=terminal_values(module, data.transitions, experience),
        weights=data.weights,
    )
    if places.hosted is not None and places.hosted is not getattr(places.evaluator, "hosted", None):
        places.hosted.close()
    return result


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


def _stacked(experiment: Experiment, config: Any) -> Any:
    in_steps = schedules.in_steps(experiment.module, config, experiment.settings)
    return configuration.stack(in_steps, len(experiment.settings.seeds))


def _check_spaces(experiment: Experiment, spec: EnvSpec, name: str, base: Base | None) -> None:
    settings, experience = experiment.settings, experiment.experience
    if experiment.dataset is not None:
        refusals.require_fit(experiment.dataset, spec, experience)
    refusals.require_base(experiment, base, spec)
    spec = _named(spec, name)
    contract.check(experiment.module, spec, experiment.config)
    signals.require(experience.signals, spec.signals, settings.agent, name)


def _named(spec: EnvSpec, name: str) -> EnvSpec:
    """The spaces with the name of training's environment, not evaluation's."""
    return spec if name == "none" else dataclasses.replace(spec, name=name)


class Data(NamedTuple):
    """A data set as the agent learns from it."""

    transitions: Transition | None  # [N, ...]; None without a data set
    reward_map: RewardMap  # of its rewards, and of new ones
    weights: dict[str, Any] | None  # of the rows, ready for JSON; None where all are equal


def _data(experiment: Experiment) -> Data:
    settings, dataset = experiment.settings, experiment.dataset
    if dataset is None:
        return Data(None, AS_STORED, None)
    data, reward_map = prepared(dataset, experiment.experience)
    if settings.weights == "uniform":
        return Data(data, reward_map, None)
    probability = datasets.row_weights(
        dataset, settings.weights, settings.weights_alpha, settings.weights_share
    )
    setting = WEIGHTS[settings.weights]
    weights: dict[str, Any] = {"name": settings.weights}
    if setting is not None:
        weights[setting.removeprefix("weights_")] = getattr(settings, setting)
    weights |= datasets.effective_sizes(dataset, probability)
    return Data(with_weights(data, probability), reward_map, weights)


class Online(NamedTuple):
    """How learners learn in an environment."""

    config: Any  # the agent's Config there
    declare: OnlineExperience
    iteration: int  # steps of one learner in one iteration


def _online(experiment: Experiment, places: Places, data: Data, name: str) -> Online:
    settings, module = experiment.settings, experiment.module
    config = configuration.replace(experiment.config, settings.online or {}, "--online")
    contract.check(module, _named(places.spec, name), config)
    mixture = goals = None
    if data.transitions is not None:
        mixture = (share_of(settings.offline_share), data.reward_map)
    if places.inside is not None:
        goals = places.inside.environment
    elif places.hosted is not None:
        goals = goals_of(places.hosted)
    declare = OnlineExperience(module, mixture, name, goals, settings.from_run is not None)
    declared = declare(config)
    declared.check()
    return Online(config, declare, declared.steps_per_iteration)


def _stage_of_data(
    experiment: Experiment, spec: EnvSpec, data: Data, online: Online | None, base: Base | None
) -> Stage:
    settings, config = experiment.settings, experiment.config
    assert data.transitions is not None
    iteration = experiment.experience.steps_per_iteration
    multiple = iteration if online is None else math.lcm(iteration, online.iteration)
    declare = None if data.weights is None else WeightedExperience(experiment.module)
    learner = Learner(experiment.module, spec, len(settings.seeds), declare, base)
    driver = OfflineDriver(
        learner, data.transitions, _stacked(experiment, config), settings.data_on_host
    )
    return Stage(driver, config, iteration, round_up(settings.steps, multiple), 0)


def _stage_online(
    experiment: Experiment,
    places: Places,
    data: Transition | None,
    online: Online,
    end: int,
    base: Base | None,
) -> Stage:
    settings, number = experiment.settings, len(experiment.settings.seeds)
    learner = Learner(experiment.module, places.spec, number, online.declare, base)
    declared, stacked = online.declare(online.config), _stacked(experiment, online.config)
    if places.inside is not None:
        driver: Driver = CompiledDriver(learner, places.inside, stacked, data)
    else:
        limit = _limit(settings.env, experiment.dataset)
        needed = number * declared.num_envs
        hosted = envs.make_hosted(online.declare.name, needed, **limit)
        if hosted.num_envs != needed:
            raise ValueError(
                f"'{hosted.name}' has {hosted.num_envs} environments, and {number} x "
                f"{declared.num_envs} are needed, for each learner: see --config.num-envs."
            )
        one_cpu = jax.default_backend() == "cpu" and jax.device_count() == 1
        driver = declared.host_driver(EmbeddedDriver, HostedDriver, one_cpu)(
            learner, hosted, stacked, data
        )
    return Stage(driver, online.config, online.iteration, end, declared.num_envs)


class Places(NamedTuple):
    """Where learners are evaluated, and where they learn."""

    evaluator: Any  # None where there is no environment
    spec: EnvSpec  # of the environment where they learn, or of the data
    inside: AutoReset | None  # that environment, if it is inside the program
    hosted: Hosted | None  # that environment, to ask; None inside the program


def _places(experiment: Experiment, name: str, inside: AutoReset | None) -> Places:
    """The evaluator, and the environment `name`; `inside` is this if the program steps it."""
    settings, dataset, experience = experiment.settings, experiment.dataset, experiment.experience
    if name == "none":
        assert dataset is not None
        return Places(None, experience.observed_spec(dataset.spec, dataset.name), None, None)
    elsewhere = settings.evaluated_in != settings.env
    evaluator = evaluation.make(
        experiment.module,
        envs.observed(settings.evaluated_in, experience.observes),
        len(settings.seeds),
        settings.eval_episodes,
        _limit(settings.evaluated_in, dataset),
        None if elsewhere else inside,
    )
    hosted = getattr(evaluator, "hosted", None)
    if hosted is not None and settings.eval_episodes % hosted.num_tasks:
        raise ValueError(
            f"--eval-episodes is {settings.eval_episodes}, and '{hosted.name}' has "
            f"{hosted.num_tasks} tasks that share them: give a multiple, such "
            f"as {round_up(settings.eval_episodes, hosted.num_tasks)}."
        )
    if not elsewhere and not envs.ends_with_lives(name):
        return Places(evaluator, evaluator.spec, inside, hosted)
    if inside is not None:
        hosted, spec = None, inside.spec
    else:
        hosted = envs.make_hosted(name, 1, **_limit(settings.env, dataset))
        spec = hosted.spec
    field = difference(evaluator.spec, spec)
    if field is not None:
        raise ValueError(
            f"--eval-env '{settings.evaluated_in}' has {field} = {getattr(evaluator.spec, field)}, "
            f"and '{settings.env}', where the agent learns, has {getattr(spec, field)}. Name "
            "one that fits."
        )
    both = (hosted, getattr(evaluator, "hosted", None))
    here, there = (getattr(each, "action_bounds", None) for each in both)
    if here is not None and there is not None and not np.allclose(here, there):
        note(
            f"the bounds of actions in --eval-env '{settings.evaluated_in}' are others than in "
            f"'{settings.env}': in both, [-1, 1] is rescaled to them."
        )
    return Places(evaluator, spec, inside, hosted)


def _limit(name: str, dataset: datasets.OfflineDataset | None) -> dict[str, int]:
    """The time limit with which a data set was recorded in `name`: reference returns are for it."""
    if dataset is None or dataset.env != name or envs.is_compiled(name):
        return {}
    limit = dataset.max_episode_steps
    return {} if limit is None else {"max_episode_steps": limit}


def _described_spaces(experiment: Experiment, places: Places) -> dict[str, Any] | None:
    """The environment's spaces, ready for JSON; None where agents see the same."""
    dataset = experiment.dataset
    if places.hosted is not None:
        return places.hosted.spaces.described()
    if experiment.settings.env != "none" or dataset is None or dataset.action_bounds is None:
        return None
    from rljax.envs.host.spaces import described_data

    return described_data(places.spec, dataset.action_bounds)
