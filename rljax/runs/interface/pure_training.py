"""`rljax.make_train`: a training inside the program as a pure function of a key."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, first_memory, float_fields
from rljax.learning import agent_state, configuration, population, schedules
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.drivers.driver import EVALUATE, TRAIN, environment_keys, means, no_episodes
from rljax.learning.learner import Hyperparameters
from rljax.learning.plan import Experiment, plan, round_up
from rljax.learning.settings import check_settings
from rljax.learning.tally import empty_tally
from rljax.runs import experiments

ADVICE = (
    "decides the program's structure or is a share of the run: give it to rljax.make_train, in "
    "`config`."
)


class TrainFunction:
    """A training of one learner, to be compiled, mapped and composed by JAX.

    Attributes:
        config: the agent's Config, as given.
        spec: what the agent observes and does.
        steps: environment steps in all.
    """

    def __init__(self, experiment: Experiment, eval_episodes: int) -> None:
        """Check everything, without compiling."""
        settings = experiment.settings
        check_settings(settings)
        configuration.require_integers(experiment.config)
        population.members(experiment.config, settings.seeds)
        made = plan(experiment)
        stage = made.stages[0]
        if not isinstance(stage.driver, CompiledDriver):
            raise ValueError(
                f"a pure function steps its environment inside the program, and '{settings.env}' "
                "is on the host: rljax.train, or one of gymnax/, brax/, playground/ or rljax/."
            )
        self.agent, self.config, self.spec = experiment.module, experiment.config, made.spec
        self.steps, self.eval_episodes = stage.end, eval_episodes
        self._driver, self._evaluator = stage.driver, made.evaluator
        # No program can take these: they are no floats, or are converted into steps before.
        in_steps = configuration.as_json(schedules.in_steps(self.agent, self.config, settings))
        floats, values = float_fields(type(self.config)), configuration.as_json(self.config)
        self._fixed = {x for x in values if x not in floats or values[x] != in_steps[x]}
        each = round_up(settings.eval_every, stage.iteration)
        ends = np.array([*range(each, stage.end, each), stage.end], np.int32)
        self._chunks = (np.diff(ends, prepend=np.int32(0)) // stage.iteration, ends)

    def __call__(self, key: Array, **settings: Any) -> tuple[Any, dict[str, Array]]:
        """Train, and return the agent's final state and its metrics.

        Args:
            key: of `jax.random`. `jax.random.key(s)` trains as `rljax train --seed s` does.
            settings: floats of the Config, which may be traced.

        Metrics have one entry for each chunk of `eval_every` steps, [C]: "step", its last step, and
        means over its updates and episodes, NaN where there were none. Those of evaluations, such
        as "evaluation/return", are [C, N] for N episodes.

        Raises `ValueError` for settings that are no floats of the Config, or shares of the run.
        """
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        keys, loop, hyper = key[None], self._driver.loop, self._hyperparameters(settings)
        starts = environment_keys(keys, TRAIN, number=hyper.experience.num_envs)
        carry = loop.init(keys, starts, hyper, None)
        names = tuple(carry.learners.tally.total)

        def chunk(carry: Any, inputs: tuple[Array, Array]) -> tuple[Any, dict[str, Array]]:
            iterations, step = inputs
            carry = loop.advance(carry, iterations, hyper, None)
            metrics = means(carry.learners.tally, carry.episodes)
            if self.eval_episodes:
                metrics |= self._evaluate(carry.learners.agent, keys, step, hyper.config)
            learners = carry.learners.replace(tally=empty_tally(names, 1))
            carry = carry.replace(learners=learners, episodes=no_episodes(self.spec, 1, jnp))
            return carry, {"step": step} | {name: x[0] for name, x in metrics.items()}

        carry, metrics = jax.lax.scan(chunk, carry, jax.tree.map(jnp.asarray, self._chunks))
        return jax.tree.map(lambda x: x[0], carry.learners.agent), metrics

    def act(self, state: Any, observation: Any, key: Array, memory: Any = None) -> tuple[Any, Any]:
        """An action without exploration, and the next memory, None where the agent has none.

        `state` is a final one, `observation` [O...] is one of the environment's, or a batch of
        them with any leading axes. `memory` is None at the beginning of an episode. Continuous
        actions lie in [-1, 1].
        """
        config = jax.tree.map(lambda x: x[0], self._driver.hyper.config)
        if memory is None:
            leading = self.spec.leading(observation)
            memory = first_memory(self.agent, self.spec, config, *leading, base=state.base)
        parts = (self.agent, state, observation, key, config, False, memory)
        action, _, memory = agent_state.act(*parts)
        return action, memory

    def _hyperparameters(self, settings: dict[str, Any]) -> Hyperparameters:
        stacked = self._driver.hyper.config
        values = {configuration.setting(stacked, name): x for name, x in settings.items()}
        for name in self._fixed.intersection(values):
            raise ValueError(f"'{name}' {ADVICE}")
        changes = {name: jnp.asarray(x, jnp.float32)[None] for name, x in values.items()}
        config = configuration.replace(stacked, changes, "settings")
        try:
            # Declarations may ask for values, which only traced settings lack.
            with jax.ensure_compile_time_eval():
                hyper = self._driver.learner.hyperparameters(config)
        except jax.errors.ConcretizationTypeError as error:
            raise ValueError(f"one of {', '.join(values)} {ADVICE}") from error
        # XLA must not fold them: `rljax train` has them as arguments, and the same bits.
        return jax.lax.optimization_barrier(hyper)

    def _evaluate(self, agent: Any, keys: Array, step: Array, config: Any) -> dict[str, Array]:
        """Episodes after a chunk, [1, N] each."""
        starts = environment_keys(keys, EVALUATE, step, number=self.eval_episodes)
        played = self._evaluator.program.episodes(agent, starts, starts[:1], config, np.bool_(0))
        returns, lengths, _, success, sums, *_ = played
        results = {"return": returns, "length": lengths, **sums}
        results |= {} if success is None else {"success": success}
        return {f"evaluation/{name}": x[None] for name, x in results.items()}


def make_train(
    agent: str,
    env: Any,
    config: Any = None,
    *,
    steps: int = 1_000_000,
    eval_every: int = 10_000,
    eval_episodes: int = 10,
    preset: str | None = None,
) -> TrainFunction:
    """A training as a pure function of a key: `state, metrics = jax.jit(train)(jax.random.key(0))`.

    Args:
        agent: a name, such as "ppo", or an agent's file.
        env: an environment inside the program: a name, a class, or an instance.
        config: a Config, or a mapping of changes to the preset.
        steps: environment steps, rounded up to whole iterations.
        eval_every: environment steps of a chunk, after which there is an entry of metrics.
        eval_episodes: N of each evaluation, without exploration; 0 for no evaluations.
        preset: a variant, whose presets come after those of the environment.

    The learner is the one of `rljax train`, bit for bit, without files, checkpoints and the
    freezing of learners that diverge.

    Raises `ValueError` or `TypeError` for arguments that cannot work.
    """
    episodes = configuration.integer(eval_episodes, "eval_episodes", 2**31 - 1)
    protocol = {"eval_every": eval_every, "eval_episodes": max(episodes, 1), "preset": preset}
    experiment = experiments.prepare(agent, env, steps, config=config, **protocol)
    return TrainFunction(experiment, max(episodes, 0))
