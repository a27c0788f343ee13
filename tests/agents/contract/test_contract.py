"""What every agent promises to the rest of rljax: `rljax/agent.py` in tests.

Each agent's own test module exports `example()`: a spec, a small Config and a batch.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import itertools
import types
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.interpreters import partial_eval

from rljax import agent as contract
from rljax.agent import EnvSpec, Metrics, Transition, Weighted, float_fields
from rljax.buffers import Dataset, Experience, Replay, Rollout, Stream
from rljax.buffers.mixed import Mixed
from rljax.learning import configuration, registry
from rljax.learning.learner import Learner
from rljax.networks import Network, Trained, heads, parameters_of
from rljax.networks.inputs import Raw
from tests.agents import trees
from tests.agents.contract.representatives import REPRESENTATIVES, quick
from tests.agents.reference import own_constant

ROOT = Path(__file__).parents[3]
AGENTS = sorted(path.stem for path in (ROOT / "agents").glob("*.py") if path.stem != "__init__")
SIGNATURES = {
    "experience": ["config"],
    "check": ["spec", "config"],
    "init": ["key", "spec", "config"],
    "act": ["state", "observation", "key", "config", "explore"],
    "update": ["state", "batch", "key", "step", "config"],
}
OPTIONAL = {
    "perceive": ["state", "observation", "first", "config"],
    "review": ["state", "outcome", "time", "config"],
    "prepare": ["state", "data", "config"],
    "schedule": ["config", "steps"],
    "value": ["state", "observation", "action", "config"],
    "use_base": ["state", "base", "config"],
    "check_base": ["base", "config"],
    "decode": ["state", "observation", "noise", "config"],
    "remember": ["spec", "config"],
    "acting": ["config"],
}
DECLARATIONS = {"replay": Replay, "rollout": Rollout, "stream": Stream, "dataset": Dataset}
# Fields of a declaration that are the Config's, where that has them.
FOLLOWING = {
    Replay: {"replay_size", "batch_size", "warmup_steps", "num_envs", "num_steps", "num_updates"},
    Rollout: {"batch_size", "num_envs", "num_steps"},
    Stream: {"num_envs", "num_steps", "num_updates", "time_feature"},
    Dataset: {"batch_size", "num_updates", "reward_transform"},
}
KEY = jax.random.key(0)
# Single operations would be compiled one by one.
applied = jax.jit(lambda network, *inputs: network(*inputs))


def of_critics(name: str, state: Any, *inputs: Any) -> Any:
    """The critics' outputs, by the agent's own test module where they have more inputs."""
    critics = own_constant(name, "critics", lambda state, *inputs: state.critic(*inputs))
    return jax.jit(critics)(state, *inputs)


def source(name: str) -> str:
    return (ROOT / "agents" / f"{name}.py").read_text()


VALUED = [name for name in AGENTS if "\ndef value(" in source(name)]
PRIORITISED = [
    name
    for name in AGENTS
    if "PrioritySettings" in source(name) or "    prioritised: " in source(name)
]
# Settings with which what is declared has more floats.
DRAWS: dict[str, list[dict[str, Any]]] = {
    "dqn": [{"n_step": 3}, {"hindsight": 0.5}, {"prioritised": 0.5}],
    "r2d2": [{"priority_exponent": 0.0}],
}

every_agent = pytest.mark.parametrize("name", AGENTS)  # for tests that compile nothing
agents = pytest.mark.parametrize("name", quick(AGENTS))


class Subject(NamedTuple):
    module: types.ModuleType
    spec: EnvSpec
    config: Any
    batch: Transition
    state: Any
    update: Any  # compiled, as the next two
    act: Any
    init: Any
    traces: list[str]  # one for each trace of `update`


@functools.cache
def example(name: str) -> tuple[types.ModuleType, EnvSpec, Any, Transition]:
    module = importlib.import_module(f"rljax.agents.{name}")
    return module, *importlib.import_module(f"tests.agents.test_{name}").example()


@functools.cache
def subject(name: str) -> Subject:
    """An agent, with programs that all tests of this file share.

    A Config's floats are float32 to `update`, as in a population: its trace serves both.
    """
    module, spec, config, batch = example(name)
    init, traces = jax.jit(module.init, static_argnums=1), []

    @jax.jit
    def compiled(*arguments: Any) -> Any:
        traces.append(name)
        return module.update(*arguments)

    def update(state: Any, batch: Any, key: Any, step: Any, config: Any) -> Any:
        config = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), config)
        return compiled(state, batch, key, step, config)

    act = jax.jit(functools.partial(acted, module, spec), static_argnames="explore")
    return Subject(module, spec, config, batch, init(KEY, spec, config), update, act, init, traces)


def acted(
    module: Any, spec: EnvSpec, state: Any, observation: Any, key: Any, config: Any, explore: bool
) -> Any:
    """Actions and extras where episodes begin."""
    memory = contract.first_memory(module, spec, config, *observation.shape[: observation.ndim - 1])
    return contract.act(module, state, observation, key, config, explore, memory)[:2]


def several(batch: Transition) -> Any:
    """Observations [8, B, O]: two draws of all actions differ."""
    return np.broadcast_to(batch.observation, (8, *batch.observation.shape))


def last_step(config: Any) -> int:
    """A step on which everything is due."""
    return getattr(config, "policy_delay", 1) - 1


def trained(state: Any) -> list[Trained]:
    nodes = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Trained))
    return [node for node in nodes if isinstance(node, Trained)]


def targets(state: Any) -> list[tuple[str, str]]:
    """Each target that is there, with what it follows."""
    names = [field.name for field in dataclasses.fields(state) if field.name.startswith("target_")]
    there = [name for name in names if getattr(state, name) is not None]
    return [(name, name.removeprefix("target_")) for name in there]


def scalars(metrics: Metrics) -> dict[str, Any]:
    return {
        name: metric.value if isinstance(metric, Weighted) else metric
        for name, metric in metrics.items()
    }


def described(tree: Any) -> Any:
    """A pytree's structure, and shape and type of each leaf; weak types would compile anew."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(x.shape, x.dtype, getattr(x, "weak_type", False)) for x in leaves]


@every_agent
def test_has_the_names_of_the_contract(name: str) -> None:
    module = importlib.import_module(f"rljax.agents.{name}")
    found = {part: list(inspect.signature(getattr(module, part)).parameters) for part in SIGNATURES}
    remembers = ["memory"] if hasattr(module, "remember") else []
    assert found == SIGNATURES | {"act": [*SIGNATURES["act"], *remembers]}
    for part in filter(functools.partial(hasattr, module), OPTIONAL):
        assert list(inspect.signature(getattr(module, part)).parameters) == OPTIONAL[part]
    assert type(module.experience(module.Config())) in DECLARATIONS.values()


def test_representatives_have_every_kind_of_experience() -> None:
    assert {declared(name)[0][1].kind for name in REPRESENTATIVES} == DECLARATIONS.keys()


def declared(name: str) -> list[tuple[Any, Experience]]:
    """Configs, with what an agent declares that it learns from."""
    module, _, config, _ = example(name)
    variants = [dataclasses.replace(config, **changes) for changes in DRAWS.get(name, [])]
    return [(config, module.experience(config)) for config in (module.Config(), config, *variants)]


def another(value: Any) -> Any:
    """Another value of a setting."""
    if isinstance(value, bool):
        return not value
    return "times_100" if isinstance(value, str) else value + 1


@every_agent
def test_declares_what_it_learns_from(name: str) -> None:
    for _, experience in declared(name):
        assert isinstance(experience, DECLARATIONS[experience.kind])
        experience.check()
        if experience.online is not None:
            assert experience.in_environment() is experience.online
            assert isinstance(experience.online, Replay)
            Mixed.of(experience.online, 0.5).check()


@every_agent
def test_declaration_is_a_frozen_pytree_of_its_floats(name: str) -> None:
    for config, experience in declared(name):
        leaves, structure = jax.tree.flatten(experience)
        assert all(type(leaf) is float for leaf in leaves)
        assert jax.tree.unflatten(structure, leaves) == experience
        with pytest.raises(dataclasses.FrozenInstanceError):
            experience.num_envs = 2  # pyright: ignore[reportAttributeAccessIssue]
        stacked = example(name)[0].experience(configuration.stack(config, 2))
        # The learners' values are leaves, and nothing else differs.
        assert jax.tree.structure(stacked) == structure
        # A constant, such as no end of a schedule, is one number for all.
        each = [x if np.ndim(x) else np.full(2, x) for x in jax.tree.leaves(stacked)]
        assert [leaf.shape for leaf in each] == [(2,)] * len(leaves)
        assert all(np.ndim(x) or np.isinf(x) for x in jax.tree.leaves(stacked))
        np.testing.assert_allclose([leaf[1] for leaf in each], leaves, rtol=1e-6)


def test_declarations_with_floats_are_tried() -> None:
    having = {name for name in AGENTS if any(jax.tree.leaves(x) for _, x in declared(name))}
    assert having >= {"bc", "calql", "dqn", "fdvl", "gciql", "iql", "r2d2", "recoil", "riql"}


@every_agent
def test_declaration_follows_the_config(name: str) -> None:
    """Its floats may have other names."""
    module = example(name)[0]
    for config, experience in declared(name):
        halved = module.experience(jax.tree.map(lambda x: 0.5 * x, config))
        assert jax.tree.leaves(halved) == [0.5 * leaf for leaf in jax.tree.leaves(experience)]
        kinds = [type(part) for part in (experience, experience.online) if part is not None]
        fields = set().union(*(FOLLOWING[kind] for kind in kinds))
        for field in filter(functools.partial(hasattr, config), fields):
            other = another(getattr(config, field))
            changed = module.experience(dataclasses.replace(config, **{field: other}))
            for kind, part in zip(kinds, (changed, changed.online), strict=False):
                assert field not in FOLLOWING[kind] or getattr(part, field) == other, field


@every_agent
def test_declares_normalised_observations_where_it_is_asked_to(name: str) -> None:
    module, _, config, _ = example(name)
    if own_constant(name, "NORMALISES_ITSELF", False):
        return
    for normalises in (False, True):
        changed = dataclasses.replace(config, normalise_observations=normalises)
        assert (type(module.experience(changed).inputs) is Raw) != normalises


@pytest.mark.parametrize("name", quick(VALUED))
def test_value_is_the_critics_mean(name: str) -> None:
    one = subject(name)
    for shape in ((), (4,), (2, 3)):
        action = jax.ShapeDtypeStruct((*shape, *one.spec.action_shape), one.spec.action_dtype)
        arrays = [one.spec.shaped(*shape), action]
        assert jax.eval_shape(one.module.value, one.state, *arrays, one.config).shape == shape
    # [C, B], or [C, B, M] quantiles, or what the agent's head reads
    outputs = of_critics(name, one.state, one.batch.observation, one.batch.action)
    if isinstance(one.config, heads.WithCriticHead):
        outputs = heads.of_critics(one.config).mean(outputs)
    each = np.asarray(outputs)
    each = each.mean(axis=tuple(range(1 + one.batch.reward.ndim, each.ndim)))
    mean = jax.jit(one.module.value)(one.state, one.batch.observation, one.batch.action, one.config)
    assert mean.shape == one.batch.reward.shape
    np.testing.assert_allclose(mean, each.sum(axis=0) / each.shape[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", [name for name in AGENTS if "agent.require_continuous(" in source(name)]
)
def test_refuses_discrete_actions(name: str) -> None:
    spec = EnvSpec("CartPole-v1", (4,), 2, discrete=True)
    siblings = {"sac": "sac_discrete", "cql": "cql_discrete", "calql": "cql_discrete"}
    sibling = {**siblings, "reppo": "ppo"}.get(name)
    advice = rf"Use agent {sibling}" if sibling else r"Choose another agent \(rljax list agents\)"
    message = (
        rf"^agent '{name}' acts in a continuous space, 'CartPole-v1' has 2 discrete actions\. "
        rf"{advice}\. Or choose an environment, or data, whose actions are continuous \(a Box\), "
        r"such as .*\.$"
    )
    with pytest.raises(ValueError, match=message):
        example(name)[0].check(spec, example(name)[2])


@every_agent
def test_evaluations_change_fields_of_the_config_alone(name: str) -> None:
    module, _, config, _ = example(name)
    names = contract.acting(module, config).names
    assert set(names) <= {field.name for field in dataclasses.fields(config)}
    assert ("compute" in names) == hasattr(config, "compute"), "thinking steps"


@every_agent
def test_config_is_a_frozen_pytree_of_its_floats(name: str) -> None:
    module, spec, config, _ = example(name)
    given = [name for name in float_fields(type(config)) if getattr(config, name) is not None]
    assert jax.tree.leaves(config) == [getattr(config, name) for name in given]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, given[0], 0.0)
    assert jax.tree.unflatten(jax.tree.structure(config), jax.tree.leaves(config)) == config
    contract.check(module, spec, config)
    contract.check(module, spec, module.Config())


def test_no_two_agents_define_equal_pytrees() -> None:
    """JAX mixes up dataclasses with equal fields where one compiled function gets both.

    A State goes to its own agent alone. Flax modules are no pytrees.
    """
    found: dict[Any, str] = {}
    for name in AGENTS:
        module = importlib.import_module(f"rljax.agents.{name}")
        for part, kind in vars(module).items():
            if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
                continue
            if issubclass(kind, nn.Module) or part in ("Config", "State"):
                continue
            if kind.__module__ == module.__name__:
                fields = dataclasses.fields(kind)
                key = tuple((x.name, x.metadata.get("pytree_node")) for x in fields)
                assert found.setdefault(key, f"{name}.{part}") == f"{name}.{part}", (
                    "share it, as `networks.Actor`"
                )


def counts_equals(program: Any) -> bool:
    """Whether a program counts equal floats, as the gradients of `min` and `max` do."""
    program, equal = getattr(program, "jaxpr", program), set()
    for equation in program.eqns:
        name, inputs = equation.primitive.name, equation.invars
        floats = [jnp.issubdtype(x.aval.dtype, jnp.floating) for x in inputs]
        converts = name == "convert_element_type" and inputs[0] in equal
        if (name == "eq" and all(floats)) or converts:
            equal.update(equation.outvars)
        if name == "reduce_sum" and floats[0] and inputs[0] in equal:
            return True
        values = (x if isinstance(x, tuple) else (x,) for x in equation.params.values())
        inner = itertools.chain.from_iterable(values)
        if any(counts_equals(x) for x in inner if hasattr(x, "eqns")):
            return True
    return False


@agents
def test_update_keeps_the_state_as_it_is_built(name: str) -> None:
    one = subject(name)
    changed, metrics = one.update(one.state, one.batch, KEY, last_step(one.config), one.config)
    assert described(changed) == described(one.state)
    arguments = (changed, one.batch, KEY, 0, one.config)
    program, again = jax.make_jaxpr(one.update, return_shape=True)(*arguments)
    live, _ = partial_eval.dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    assert not counts_equals(live), (
        "the gradient of .min or .max can be 0 / 0: networks.smallest and largest"
    )
    assert described(again[0])[0] == described(one.state)[0]
    assert again[1].keys() == metrics.keys()
    for key, value in metrics.items():
        assert jax.tree.map(jnp.shape, value) in ((), Weighted((), ())), key  # pyright: ignore[reportArgumentType]
        assert key.count("/") == 1, "metrics are named part/what"


@agents
def test_act_hands_out_actions(name: str) -> None:
    one = subject(name)
    for explore in (False, True):
        for shape in ((), (4,), several(one.batch).shape[:2]):
            observation = jax.ShapeDtypeStruct((*shape, *one.spec.observation_shape), jnp.float32)
            found, extras, *_ = jax.eval_shape(
                functools.partial(one.act, explore=explore), one.state, observation, KEY, one.config
            )
            expected = (*shape, *one.spec.action_shape), one.spec.action_dtype
            assert (found.shape, found.dtype) == expected
            assert all(leaf.shape[: len(shape)] == shape for leaf in jax.tree.leaves(extras))
        action = one.act(one.state, several(one.batch), KEY, one.config, explore=explore)[0]
        if not one.spec.discrete:
            assert np.abs(action).max() <= 1.0


@agents
def test_only_exploring_is_random(name: str) -> None:
    one = subject(name)
    for explore in (False, True):
        actions = (
            one.act(one.state, several(one.batch), key, one.config, explore=explore)[0]
            for key in jax.random.split(KEY)
        )
        random = explore or own_constant(name, "POLICY_IS_A_DRAW", False)
        assert np.array_equal(*actions) != random


@agents
def test_new_floats_are_not_compiled_anew(name: str) -> None:
    one = subject(name)
    moved, metrics = one.update(one.state, one.batch, KEY, 0, one.config)
    before = len(one.traces)
    after = one.update(moved, one.batch, KEY, 1, jax.tree.map(lambda x: 0.5 * x, one.config))[1]
    # The Config's floats, the step and the State's own result are not static.
    assert len(one.traces) == before > 0
    assert metrics.keys() == after.keys()


def test_settings_that_shape_the_program_are_compiled_anew() -> None:
    """The count of the test above can rise."""
    one = subject("td3")
    before = len(one.traces)
    config = dataclasses.replace(one.config, policy_delay=3)
    jax.eval_shape(one.update, one.state, one.batch, KEY, 0, config)
    assert len(one.traces) == before + 1


@agents
def test_acting_does_not_depend_on_being_compiled(name: str) -> None:
    one = subject(name)
    seen = several(one.batch)
    plain = acted(one.module, one.spec, one.state, seen, KEY, one.config, explore=False)
    trees.assert_close(plain, one.act(one.state, seen, KEY, one.config, explore=False))


@pytest.mark.learn  # hundreds of operations, each compiled alone
@agents
def test_updating_does_not_depend_on_being_compiled(name: str) -> None:
    """But for parameters without slope, which an agent's test may name: there Adam makes a step of
    every rounding error.
    """
    one, without = subject(name), own_constant(name, "WITHOUT_SLOPE", ())

    def sloped(tree: Any) -> list[Any]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return [x for path, x in leaves if not set(without) & {jax.tree_util.keystr(path[-2:])}]

    step = last_step(one.config)
    with jax.disable_jit():
        plain = one.module.update(one.state, one.batch, KEY, jnp.asarray(step), one.config)
    compiled = one.update(one.state, one.batch, KEY, step, one.config)
    trees.assert_close(sloped(plain), sloped(compiled))


@agents
def test_a_population_learns_as_each_learner_alone(name: str) -> None:
    one = subject(name)
    step, scales = last_step(one.config), [1.0, 0.5]
    configs = [jax.tree.map(lambda x, scale=scale: scale * x, one.config) for scale in scales]
    states = [
        jax.tree.map(lambda x, scale=scale: (scale * np.asarray(x)).astype(x.dtype), one.state)
        for scale in scales
    ]
    batches = [one.batch.replace(reward=scale * np.asarray(one.batch.reward)) for scale in scales]
    keys = jax.random.split(KEY, 2)

    def stack(*leaves: Any) -> np.ndarray:
        return np.asarray(leaves, np.float32) if isinstance(leaves[0], float) else np.stack(leaves)

    stacked = [jax.tree.map(stack, *parts) for parts in (states, batches, configs)]
    together = jax.jit(jax.vmap(one.update, in_axes=(0, 0, 0, None, 0)))
    result = together(stacked[0], stacked[1], keys, step, stacked[2])
    for i in range(2):
        alone = one.update(states[i], batches[i], keys[i], step, configs[i])
        trees.assert_close(jax.tree.map(lambda x, i=i: np.asarray(x)[i], result), alone)


@agents
def test_update_teaches_every_parameter(name: str) -> None:
    one = subject(name)
    new = one.state
    for step in range(last_step(one.config) + 1):
        new, metrics = one.update(new, one.batch, KEY, step, one.config)
    assert all(np.isfinite(value) for value in scalars(metrics).values())
    for old, changed in zip(trained(one.state), trained(new), strict=True):
        assert trees.all_differ(old.parameters, changed.parameters)


@agents
def test_every_network_is_trained_or_a_target(name: str) -> None:
    state = subject(name).state
    fields = [field.name for field in dataclasses.fields(state)]
    # Networks that follow others by a rule of their own.
    averages = own_constant(name, "AVERAGES", ())
    for field in fields:
        if isinstance(getattr(state, field), Network):
            assert field.startswith("target_") or field in averages


@pytest.mark.parametrize("name", quick(PRIORITISED))
def test_weights_and_priorities_are_those_of_the_rows(name: str) -> None:
    """Rows without weight teach nothing; where nothing follows, errors are to the reward."""
    one = subject(name)
    batch, rows = one.batch, len(one.batch.reward)

    def updated(**extras: np.ndarray) -> Any:
        ended = np.ones_like(batch.terminated)
        weighted = batch.replace(terminated=ended, extras={**batch.extras, **extras})
        return one.update(one.state, weighted, KEY, last_step(one.config), one.config)

    row = np.arange(rows, dtype=np.int32)
    ones, metrics = updated(row=row, weight=np.ones(rows, np.float32))
    zeros, _ = updated(row=row, weight=np.zeros(rows, np.float32))
    trees.assert_close(ones, updated()[0])
    trees.assert_close(zeros.critic.parameters, one.state.critic.parameters)
    inputs = (batch.observation, batch.action)[: 1 if one.spec.discrete else 2]
    # [C, B], or [C, B, A], or [C, B, 2]: mean and std, or [C, B, K]: quantiles
    q = np.asarray(of_critics(name, one.state, *inputs))
    if q.ndim == 3 and one.spec.discrete:
        q = q[:, np.arange(rows), one.batch.action]
    elif q.ndim == 3:
        q = q[..., 0] if q.shape[-1] == 2 else q.mean(axis=-1)
    error = np.abs(q - np.asarray(one.batch.reward)).max(axis=0)
    trees.assert_close(metrics["priorities"], error)


def online_network(state: Any, name: str) -> Any:
    """A network of a State, or of those that one optimiser moves."""
    return parameters_of(
        getattr(state if hasattr(state, name) else state.networks.parameters, name)
    )


@agents
def test_targets_follow_at_their_rate(name: str) -> None:
    one = subject(name)
    new, _ = one.update(one.state, one.batch, KEY, last_step(one.config), one.config)
    followed = one.state if own_constant(name, "TARGETS_LAG", False) else new
    for target, online in targets(one.state):
        rate = getattr(one.config, "target_rate", 1.0)
        expected = jax.tree.map(
            lambda old, new, rate=rate: (1.0 - rate) * np.asarray(old) + rate * np.asarray(new),
            getattr(one.state, target),
            online_network(followed, online),
        )
        trees.assert_close(getattr(new, target), expected, rtol=1e-6, atol=1e-7)


@agents
def test_targets_begin_equal_in_memory_of_their_own(name: str) -> None:
    one = subject(name)
    for target, online in targets(one.state):
        assert trees.equal(getattr(one.state, target), online_network(one.state, online))
    leaves = one.init.trace(KEY, one.spec, one.config).jaxpr.jaxpr.outvars
    # Two leaves in one buffer cannot both be donated.
    assert len(set(map(id, leaves))) == len(leaves)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ppo", {"actor_hidden": (4,), "critic_hidden": (4,), "num_steps": 4}),
        ("ppo", {"actor_hidden": (4,), "num_steps": 4, "shared": True, "compute": 2}),
        ("dqn", {"hidden": (4,), "replay_size": 8, "dueling": True}),
    ],
)
def test_a_torso_for_pictures_sees_pictures(name: str, changes: Any) -> None:
    module, spec = registry.load_agent(name), EnvSpec("Pictures", (5, 6, 3), 4, discrete=True)
    config = dataclasses.replace(module.Config(), **changes, num_envs=2, batch_size=4, torso="drc")
    module.check(spec, config)
    learners = Learner(module, spec, 1)
    hyper = learners.hyperparameters(configuration.stack(config, 1))
    state = jax.eval_shape(lambda: learners.init(jax.random.split(KEY, 1), hyper))
    new = jax.eval_shape(lambda state: learners.update(state, hyper), state)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    seen = jnp.zeros((1, 2, 5, 6, 3))
    action, _ = jax.eval_shape(lambda state: learners.act(state, seen, hyper), state)
    assert action.shape == (1, 2)
