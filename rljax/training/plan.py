"""The plan of a training: its stages and their drivers.

A run trains in an environment, on a data set, or first on a data set and then in an environment.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax import datasets, envs
from rljax.agent import Base, EnvSpec, Transition, difference, shown
from rljax.buffers import Dataset, Experience, Mixed, Replay, Rollout, UniformRows, WeightedRows, with_weights
from rljax.distributed import processes
from rljax.envs import signals
from rljax.envs.autoreset import AutoReset
from rljax.envs.goals import goals_of
from rljax.envs.host.hosted import Hosted
from rljax.training import configuration, evaluation, population, schedules, sizes
from rljax.training.drivers.compiled import CompiledDriver
from rljax.training.drivers.driver import Driver
from rljax.training.drivers.embedded import EmbeddedDriver
from rljax.training.drivers.hosted import HostedDriver
from rljax.training.drivers.offline import OfflineDriver
from rljax.training.learner import Learner
from rljax.training.settings import WEIGHTS, Settings, share_of
from rljax.training.terminal_values import TerminalValues, terminal_values


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that a training needs to begin: an agent, its hyperparameters and its data."""

    settings: Settings
    module: Any  # the agent
    config: Any  # the agent's Config; floats are numbers, or tuples with one value per learner
    dataset: datasets.OfflineDataset | None
    load_base: Callable[[], Base] | None = None  # reads another run's policy, for agents with `use_base`

    load_start: Callable[[], Any] | None = None  # reads the policies of another run, with which learners begin

    @functools.cached_property
    def base(self) -> Base | None:
        """Another run's policy. Reading it starts JAX, so call `prefer_devices` before."""
        return None if self.load_base is None else self.load_base()

    @property
    def experience(self) -> Experience:
        """The agent's declaration of what it learns from."""
        return self.module.experience(self.config)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a run with one source of experience."""

    driver: Driver
    config: Any  # the agent's Config in this stage, as given: settings may be shares of the run
    iteration: int  # steps of one learner in one iteration of the driver
    end: int  # the run's step at which the stage ends


@dataclasses.dataclass(frozen=True)
class Plan:
    """The stages of a run, in order, and the evaluator of its policies."""

    stages: list[Stage]
    evaluator: Any  # None where there is no environment
    spec: EnvSpec
    spaces: dict[str, Any] | None  # of the environment, ready for JSON; None inside the program: agents see the same
    warnings: tuple[str, ...] = ()  # possible problems with the data set and with learning rates
    terminal: TerminalValues | None = None  # metrics of the data set's terminal rows
    weights: dict[str, Any] | None = None  # how unequally rows are drawn, ready for JSON; None where all are equal

    @property
    def multiple(self) -> int:
        """A number of steps: every stage can stop at its multiples."""
        return math.lcm(*(stage.iteration for stage in self.stages))


def plan(experiment: Experiment) -> Plan:
    """Plan the stages that the settings ask for. Nothing compiles.

    Raises `ValueError` where the agent needs data and has none, where the agent or environment cannot use the data, and
    for everything that environments and agents refuse.
    """
    settings, module, dataset = experiment.settings, experiment.module, experiment.dataset
    config, experience = experiment.config, experiment.experience
    experience.check()
    _require_source(experiment, experience)
    number = len(settings.seeds)
    name = observed(settings.env, experience)
    inside = envs.make(name) if envs.is_compiled(name) else None
    steps_online = settings.then_online if experience.needs_data else settings.steps
    if steps_online and experience.needs_data:
        schedules.require_rate(module, config, settings)
    _require_shared(settings, name, bool(steps_online) and inside is None)
    sizes.require_environments(settings, experience, inside is None)
    evaluator, spec, hosted = _places(experiment, name, inside)
    if dataset is not None:
        _require_fit(dataset, spec, experience.goals)
    if experiment.base is not None:
        require_same_spaces(experiment.base.spec, f"--base {settings.base}", spec)
    trained = spec if name == "none" else dataclasses.replace(spec, name=name)  # evaluation may use another name
    module.check(trained, config)
    signals.require(experience.signals, spec.signals, settings.agent, name)

    data, reward_affine = (None, (1.0, 0.0)) if dataset is None else prepared(dataset, experience)
    weights = None
    if settings.weights != "uniform":
        assert dataset is not None
        assert data is not None
        probability = datasets.row_weights(dataset, settings.weights, settings.weights_alpha, settings.weights_share)
        own = WEIGHTS[settings.weights]
        weights = {"name": settings.weights} | ({} if own is None else {own[len("weights_") :]: getattr(settings, own)})
        data, weights = with_weights(data, probability), weights | datasets.effective_sizes(dataset, probability)
    changed = configuration.replace(config, settings.online or {}, "--online")
    online = None

    def stacked(config: Any) -> Any:
        return configuration.stack(schedules.in_steps(module, config, settings), number)

    if steps_online:
        module.check(trained, changed)
        mixture = None if dataset is None else (share_of(settings.offline_share), reward_affine)
        goals = None if hosted is None else goals_of(hosted)
        goals = goals if inside is None else inside.environment
        online = OnlineExperience(module, mixture, name, goals, settings.from_run is not None)
        online(changed).check()
    stages, end = [], 0
    if experience.needs_data:
        assert data is not None
        each = experience.steps_per_iteration
        end = round_up(settings.steps, each if online is None else math.lcm(each, online(changed).steps_per_iteration))
        declare = None if weights is None else Weighted(module)
        learner = Learner(module, spec, number, declare, experiment.base)
        driver: Driver = OfflineDriver(learner, data, stacked(config), settings.data_on_host)
        stages.append(Stage(driver, config, each, end))
    if online is not None:
        declared = online(changed)
        learner = Learner(module, spec, number, online, experiment.base)
        if inside is not None:
            driver = CompiledDriver(learner, inside, stacked(changed), data)
        else:
            stepped = envs.make_hosted(name, number * declared.num_envs, **_limit(settings.env, dataset))
            embedded = declared.streams or (jax.default_backend() == "cpu" and jax.device_count() == 1)
            driver = (EmbeddedDriver if embedded else HostedDriver)(learner, stepped, stacked(changed), data)
        each = declared.steps_per_iteration
        stages.append(Stage(driver, changed, each, end + round_up(steps_online, each)))
    found = (_other_bounds(dataset, hosted), schedules.early_end(module, config, settings))
    warnings = tuple(warning for warning in found if warning is not None)
    terminal = terminal_values(module, data, experience.goals)
    spaces = _described_spaces(hosted, experiment, spec)
    if hosted is not None and hosted is not getattr(evaluator, "hosted", None):
        hosted.close()
    return Plan(stages, evaluator, spec, spaces, warnings, terminal, weights)


def prepared(dataset: datasets.OfflineDataset, experience: Experience) -> tuple[Transition, tuple[float, float]]:
    """The data set in the form that the agent declares, and the scale and shift of its rewards and of new rewards."""
    transform = experience.reward_transform
    scale, shift = datasets.reward_transform(transform, dataset)
    transitions = dataset.transitions
    kept = (*experience.signals, *experience.labels)
    transitions = transitions.replace(extras={name: transitions.extras[name] for name in kept})
    if (scale, shift) != (1.0, 0.0):
        transitions = transitions.replace(reward=transitions.reward * scale + shift)
    return experience.prepare(transitions), (scale, shift)


def observed(name: str, experience: Experience) -> str:
    """The name of the environment as the agent observes it: with goals or the time, where the agent declares them."""
    if name == "none":
        return name
    if experience.goals:
        return envs.with_goals(name)
    return envs.with_time(name) if experience.time_feature else name


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


@dataclasses.dataclass(frozen=True)
class Weighted:
    """Maps a Config to the declaration for a data set whose rows have weights."""

    module: Any  # the agent

    def __call__(self, config: Any) -> Experience:
        """The agent's declaration, with weighted rows in place of uniform ones."""
        return dataclasses.replace(self.module.experience(config), draw=WeightedRows())


@dataclasses.dataclass(frozen=True)
class OnlineExperience:
    """Maps a Config to the declaration for new experience."""

    module: Any  # the agent
    mixture: tuple[Any, tuple[float, float]] | None  # beside a data set: see `Mixed.of`
    name: str  # of the environment
    goals: Any  # replaces goals in hindsight: the environment or `VectorGoals`; a text says why none can, or None
    has_policy: bool = False  # learners begin with a policy: it acts in the warm-up, in place of uniform actions

    def __call__(self, config: Any) -> Experience:
        """The declaration, mixed with the data set where there is one. Rollouts stay whole, with rows beside them."""
        declared = self.module.experience(config)
        if declared.needs_data:
            declared = declared.online
        if self.has_policy and isinstance(declared, Replay):
            declared = dataclasses.replace(declared, uniform_warmup=False)
        if self.mixture is not None and not isinstance(declared, Rollout):
            return Mixed.of(declared, *self.mixture)
        if isinstance(declared, Replay) and declared.stores_time:
            environment = _with_goals(self.name, self.goals, declared.draw.flag)
            return dataclasses.replace(declared, draw=dataclasses.replace(declared.draw, environment=environment))
        return declared


def _with_goals(name: str, goals: Any, flag: str) -> Any:
    """What replaces goals. Raises `ValueError` where nothing can."""
    if all(hasattr(goals, part) for part in ("achieved", "desired", "relabelled", "goal_reward")):
        return goals
    reason = (
        f"the observations of '{name}' hold none. Choose an environment whose observations hold goals, such as "
        "rljax/BoxPick-4x4"
    )
    reason = goals if isinstance(goals, str) else reason
    raise ValueError(f"--config.{flag} replaces goals, and {reason}, or --config.{flag} 0.")


class Places(NamedTuple):
    """Where learners are judged, and where they learn."""

    evaluator: Any  # None where there is no environment
    spec: EnvSpec  # of the environment where they learn, or of the data where there is none
    hosted: Hosted | None  # environments of that kind, to ask; None inside the program


def _places(experiment: Experiment, name: str, inside: AutoReset | None) -> Places:
    """The evaluator, and the environment `name` where learners learn, which is `inside` where it is in the program."""
    settings, module, dataset = experiment.settings, experiment.module, experiment.dataset
    if name == "none":
        assert dataset is not None
        return Places(None, _spec(dataset, experiment.experience.goals), None)
    judged, episodes = settings.evaluated_in, settings.eval_episodes
    elsewhere = judged != settings.env
    seen, number = observed(judged, experiment.experience), len(settings.seeds)
    limit = _limit(judged, dataset)
    evaluator = evaluation.make(module, seen, number, episodes, limit, None if elsewhere else inside)
    hosted = getattr(evaluator, "hosted", None)
    if hosted is not None and episodes % hosted.num_tasks:
        raise ValueError(
            f"--eval-episodes is {episodes}, and '{hosted.name}' has {hosted.num_tasks} tasks that share them: give a "
            f"multiple, such as {round_up(episodes, hosted.num_tasks)}."
        )
    if not elsewhere:
        return Places(evaluator, evaluator.spec, hosted)
    if inside is not None:
        hosted, spec = None, inside.spec
    else:
        hosted = envs.make_hosted(name, 1, **_limit(settings.env, dataset))
        spec = hosted.spec
    other = difference(evaluator.spec, spec)
    if other is not None:
        raise ValueError(
            f"--eval-env '{judged}' has {other} = {getattr(evaluator.spec, other)}, and '{settings.env}', where the "
            f"agent learns, has {getattr(spec, other)}. Name one that fits."
        )
    return Places(evaluator, spec, hosted)


def _limit(name: str, dataset: datasets.OfflineDataset | None) -> dict[str, int]:
    """The time limit of the environment `name` if a data set was recorded in it: its reference returns hold for this.

    Gymnasium may register another limit: D4RL's pen has half of it, the long-horizon sets have more.
    """
    if dataset is None or dataset.env != name or envs.is_compiled(name):
        return {}
    return {} if dataset.max_episode_steps is None else {"max_episode_steps": dataset.max_episode_steps}


def _require_source(experiment: Experiment, experience: Experience) -> None:
    settings, dataset, agent = experiment.settings, experiment.dataset, experiment.settings.agent
    if experience.needs_data and dataset is None:
        raise ValueError(f"agent '{agent}' learns from data: rljax train {agent} --data d4rl/hopper-medium-v2")
    if experience.waits_for_data and dataset is None:
        remedy = " Or learn without one: --config.data-size 0." if isinstance(experience, Rollout) else ""
        raise ValueError(f"agent '{agent}' learns from a data set beside new experience. Name it: --data DATA.{remedy}")
    if not experience.mixes_data and dataset is not None:
        raise ValueError(
            f"agent '{agent}' learns from what its own policy has just done, and cannot use --data. Agents that can "
            "learn from a replay or a data set: rljax list agents"
        )
    if dataset is not None:
        signals.require(experience.signals, dataset.spec.signals, agent, dataset.name)
        datasets.require_labels(dataset, experience.labels, agent)
    if not hasattr(experiment.module, "perceive"):
        for declared in (experience, experience.online):
            if declared is not None and declared.perceives:
                raise ValueError(f"agent '{agent}' declares `perceives=True` in `experience`, and has no `perceive`.")
    own_draw = isinstance(experience, Dataset) and not isinstance(experience.draw, UniformRows)
    if settings.weights != "uniform" and own_draw:
        raise ValueError(
            f"agent '{agent}' draws rows in its own way, and --weights {settings.weights} is for agents that draw all "
            "rows alike: leave it out."
        )
    if settings.data_on_host and (dataset is None or not experience.needs_data or settings.then_online):
        raise ValueError("--data-on-host is for learning from a data set alone: beside new experience it must fit.")
    if settings.then_online and not experience.needs_data:
        raise ValueError(f"--then-online continues an agent that learns from data alone, '{agent}' is online already.")
    if settings.then_online and experience.online is None:
        learns = "learns of goals from data alone" if experience.goals else "learns from data alone"
        raise ValueError(f"agent '{agent}' {learns}, without --then-online.")
    if dataset is not None and dataset.provenance.get("task") is not None and experience.goals:
        plain = f"ogbench/{dataset.provenance['id']}"
        raise ValueError(
            f"'{dataset.name}' is cut where one task is done, and agent '{agent}' learns of all goals. Use: "
            f"rljax train {agent} --data {plain}"
        )
    if settings.eval_env is not None and experience.needs_data and not settings.then_online:
        raise ValueError(
            f"--eval-env is for agents that learn in an environment and are judged in another. Agent '{agent}' learns "
            "from data alone: --env names the environment that judges it."
        )
    if settings.env == "none" and (dataset is None or settings.then_online or not experience.needs_data):
        raise ValueError("--env none is for learning from data alone; here an environment is needed.")
    if experiment.load_base is not None and not hasattr(experiment.module, "use_base"):
        raise ValueError(f"agent '{agent}' takes no other run's policy: leave out --base.")


def inheritance(given: Any, settings: Settings, spec: EnvSpec, wanted: Any) -> dict[str, Any]:
    """The parts of the State of `given`, the policies of another run, with which learners begin; by their names.

    `wanted` is the learners' own State, or its shapes. Raises `ValueError` where the two runs do not fit.
    """
    require_same_spaces(given.spec, f"--from {settings.from_run}", spec)
    return population.inheritance(wanted, given.state, settings.from_parts, str(settings.from_run))


def _described_spaces(hosted: Hosted | None, experiment: Experiment, spec: EnvSpec) -> dict[str, Any] | None:
    """The environment's own spaces, ready for JSON. None inside the program, where agents see the same."""
    dataset = experiment.dataset
    if hosted is not None:
        return hosted.spaces.described()
    if experiment.settings.env != "none" or dataset is None or dataset.action_bounds is None:
        return None
    from rljax.envs.host.spaces import described_data

    return described_data(spec, dataset.action_bounds)


def _require_shared(settings: Settings, name: str, stepped_on_host: Any) -> None:
    """Raise `ValueError` for environments and data that several processes cannot share."""
    if not processes.is_distributed():
        return
    if stepped_on_host:
        raise ValueError(
            f"'{name}' is stepped on the host, several processes share environments inside the program (brax/, "
            "gymnax/, playground/, rljax/) and data sets. Its learners do not need each other: train some on each "
            f"machine, rljax train {settings.agent} --env {name} --seed S, or a grid's launches with --ray."
        )
    if settings.data_on_host:
        raise ValueError("--data-on-host keeps a data set in one machine's memory: several processes cannot share it.")


def _other_bounds(dataset: datasets.OfflineDataset | None, hosted: Hosted | None) -> str | None:
    """A warning where the action bounds of a data set differ from those of its environment."""
    own = None if hosted is None else hosted.action_bounds
    if dataset is None or dataset.action_bounds is None or own is None or np.allclose(dataset.action_bounds, own):
        return None
    low, high = (f"[{x[0].min():g}, {x[1].max():g}]" for x in (dataset.action_bounds, own))
    return (
        f"actions of '{dataset.name}' were read as lying in {low}, those of the environment lie in {high}. That is "
        "right if the file's are normalised; if not: rljax data convert FILE NEW --action-bounds LOW HIGH"
    )


def _require_fit(dataset: datasets.OfflineDataset, spec: EnvSpec, goals: bool) -> None:
    """Raise `ValueError` where the shapes of a data set and an environment differ.

    With `goals`, the environment's observations hold a goal behind the state. Where the data do not say how many
    discrete actions there are, the environment does.
    """
    given = _spec(dataset, goals)
    shows_other = difference(given, spec) in ("observation_shape", "observation_dtype", "parts")
    if shows_other and not (spec.is_vector and given.is_vector):
        raise ValueError(
            f"data set '{dataset.name}' shows {shown(given)}, environment '{spec.name}' shows {shown(spec)}. Name "
            "one that fits with --env, or none to train without evaluations."
        )
    if dataset.discrete and spec.discrete and len(given.choices) == len(spec.choices):
        known = dataset.provenance.get("choices" if given.choices else "num_actions")
        choices = tuple(max(pair) for pair in zip(given.choices, spec.choices, strict=True))
        number = sum(choices) or max(given.action_size, spec.action_size)
        given = given if known else dataclasses.replace(given, action_size=number, choices=choices)
    name = difference(given, spec)
    if name is None:
        return
    if name in ("action_size", "discrete") and spec.discrete != given.discrete:
        name = "discrete"
        if spec.discrete and not spec.choices:
            datasets.require_integers(dataset, spec.name, spec.action_size)
    raise ValueError(
        f"data set '{dataset.name}' has {name} = {getattr(given, name)}, environment '{spec.name}' has "
        f"{getattr(spec, name)}. Name one that fits with --env, or none to train without evaluations."
    )


def _spec(dataset: datasets.OfflineDataset, goals: bool) -> EnvSpec:
    """The spaces of a data set as its agent observes them: with `goals`, a goal is behind the state.

    Raises `ValueError` for goals of anything else than vectors.
    """
    spec = dataset.spec
    if not goals:
        return spec
    if not spec.is_vector:
        raise ValueError(
            f"'{dataset.name}' shows {shown(spec)}, and goals are drawn from vectors alone: choose another agent."
        )
    return dataclasses.replace(spec, observation_shape=(2 * spec.observation_shape[0],))


def require_same_spaces(of_other: EnvSpec, flag: str, spec: EnvSpec) -> None:
    """Raise `ValueError` where the observations or actions of another run, which `flag` names, have other sizes."""
    name = difference(of_other, spec)
    if name is not None:
        raise ValueError(
            f"the policy of {flag} was trained with {name} = {getattr(of_other, name)} on "
            f"'{of_other.name}', '{spec.name}' has {getattr(spec, name)}. Name a run in an environment of the "
            "same shapes."
        )
