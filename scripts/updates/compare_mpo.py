"""MPO's updates beside those of Acme's unmodified learner: the same first parameters, batches and
noise.

  python -m venv peer && peer/bin/pip install jax==0.10.2 flax distrax dm-haiku rlax tfp-nightly
  PYTHONPATH=. peer/bin/python scripts/updates/compare_mpo.py --peer acme \
      --output results/checks/references/mpo.json

The folder `acme` has google-deepmind/acme of GitHub at 770bc75. Its learner and its networks are
imported as they are. Packages that they import but do not need here, such as TensorFlow and Reverb,
are empty. Everything is in float64. Each row has the actions of Acme's random keys in both.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rljax.agent import EnvSpec, Transition
from rljax.agents import mpo
from rljax.networks.optimisation.duals import Duals
from scripts.checks.compare_updates import given_noise
from scripts.updates import shared
from scripts.updates.shared import distance, relative

OBSERVATION, ACTION, BATCH = 5, 3, 32
HIDDEN, CRITIC = (24, 16, 16), (32, 24, 16)
EMPTY = (
    "PIL",
    "bsuite",
    "dm_control",
    "gym",
    "launchpad",
    "reverb",
    "sonnet",
    "tensorflow",
    "trfl",
)
SETTINGS: dict[str, Any] = {
    "hidden": HIDDEN,
    "critic_hidden": CRITIC,
    "batch_size": BATCH,
    "target_every": 5,
    "num_actions": 20,
}
CASES: dict[str, dict[str, Any]] = {
    "MPO": {},
    # Multipliers so small that divergences pass their bounds.
    "loose": {"init_multiplier_mean": 0.1, "init_multiplier_std": 0.1},
    # Theirs cannot have a penalty of actions beside one multiplier for all dimensions.
    "sums": {"per_dimension": False, "epsilon_penalty": None, "init_multiplier_std": 0.1},
    "DMPO": {"value_head": "c51", "bins": 51, "v_min": -20.0, "v_max": 20.0},
}


class Finder:
    """Makes empty modules of packages that are not needed."""

    def find_spec(self, name: str, *_: Any) -> Any:
        """The specification of such a module, else None."""
        if name.split(".")[0] in EMPTY or name.startswith("acme.adders"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> Any:
        """A module that has every name."""
        module = mock.MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: Any) -> None:
        """Nothing is to be done."""


class Step(NamedTuple):
    """Steps of a sequence, with the names of Acme's module for Reverb."""

    observation: Any
    action: Any
    reward: Any
    discount: Any
    start_of_episode: Any
    extras: Any = ()


class Acme(NamedTuple):
    """Their modules."""

    agent: Any
    learning: Any
    specs: Any
    types: Any


@functools.cache
def imported(peer: Path) -> Acme:
    """Acme's modules."""
    import distrax  # noqa: F401
    import rlax  # noqa: F401  # pyright: ignore[reportMissingImports]

    probability: Any = importlib.import_module("tensorflow_probability")
    importlib.import_module("tensorflow_probability.substrates.jax")
    bare: Any = types.ModuleType("tensorflow_probability")
    bare.__path__, bare.substrates = probability.__path__, probability.substrates
    bare.experimental = types.SimpleNamespace(auto_composite_tensor=lambda cls: cls)
    paths, finders = [str(peer), *sys.path], [Finder(), *sys.meta_path]
    with (
        mock.patch.dict(sys.modules, {"tensorflow_probability": bare}),
        mock.patch.object(sys, "path", paths),
        mock.patch.object(sys, "meta_path", finders),
    ):
        from acme import specs  # pyright: ignore[reportMissingImports]
        from acme import types as their_types  # pyright: ignore[reportMissingImports]
        from acme.agents.jax import mpo as agent  # pyright: ignore[reportMissingImports]
        from acme.agents.jax.mpo import learning  # pyright: ignore[reportMissingImports]
    learning.adders.Step = Step
    return Acme(agent, learning, specs, their_types)


def config_of(changes: dict[str, Any]) -> mpo.Config:
    """Our settings of a case."""
    return mpo.Config(**SETTINGS | changes)


def their_learner(peer: Path, config: mpo.Config) -> Any:
    """Acme's learner with the settings of ours."""
    agent, learning, specs, _ = imported(peer)
    classes = config.value_head == "c51"
    critic = agent.CriticType.CATEGORICAL if classes else agent.CriticType.NONDISTRIBUTIONAL
    spaces = specs.EnvironmentSpec(
        observations=specs.Array((OBSERVATION,), np.float32),
        actions=specs.BoundedArray((ACTION,), np.float32, -1.0, 1.0),
        rewards=specs.Array((), np.float32),
        discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
    )
    networks = agent.make_control_networks(
        spaces,
        policy_layer_sizes=config.hidden,
        critic_layer_sizes=config.critic_widths,
        policy_init_scale=config.init_std,
        critic_type=critic,
        categorical_num_bins=config.bins,
        vmin=config.v_min,
        vmax=config.v_max,
    )
    loss = agent.types.GaussianPolicyLossConfig(
        epsilon=config.epsilon,
        epsilon_penalty=config.epsilon_penalty or 0.0,
        action_penalization=config.epsilon_penalty is not None,
        epsilon_mean=config.epsilon_mean,
        epsilon_stddev=config.epsilon_std,
        init_log_temperature=config.init_temperature,
        init_log_alpha_mean=config.init_multiplier_mean,
        init_log_alpha_stddev=config.init_multiplier_std,
        per_dim_constraining=config.per_dimension,
    )
    return learning.MPOLearner(
        critic_type=critic,
        discrete_policy=False,
        environment_spec=spaces,
        networks=networks,
        random_key=jax.random.PRNGKey(0),
        discount=config.discount,
        num_samples=config.num_actions,
        iterator=iter(()),
        experience_type=agent.types.FromTransitions(config.n_step),
        loss_scales=agent.types.LossScalesConfig(),
        target_update_period=config.target_every,
        sgd_steps_per_learner_step=1,
        policy_loss_config=loss,
        optimizer=optax.adamw(config.critic_lr, weight_decay=0.0),
        dual_optimizer=optax.adam(config.dual_lr),
        devices=jax.local_devices()[:1],
    )


def batches(updates: int) -> list[Transition]:
    """Batches of random transitions over one to four steps, whose discounts are those of Acme: of
    all steps but one, and 0 at an end.
    """
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return generator.normal(size=(BATCH, *shape))

    def batch() -> Transition:
        terminated = generator.random(BATCH) < 0.2
        steps = generator.integers(1, 5, size=BATCH)
        return Transition(
            observation=normal(OBSERVATION),
            action=np.tanh(normal(ACTION)),  # pyright: ignore[reportArgumentType]
            reward=3.0 * normal(),
            terminated=terminated,  # pyright: ignore[reportArgumentType]
            truncated=np.zeros(BATCH, bool),  # pyright: ignore[reportArgumentType]
            next_observation=normal(OBSERVATION),
            extras={"discount": 0.99 ** (steps - 1.0)},  # pyright: ignore[reportArgumentType]
        )

    return [batch() for _ in range(updates)]


def layers(params: Any) -> dict[str, Any]:
    """The parameters of one of their networks by our names."""
    parts: dict[str, Any] = {}
    for name, part in params.items():
        short = name.split("/")[-1]
        path = name.removesuffix(f"/{short}")
        if "layer_norm" in short:
            parts["norm_0"] = {"scale": part["scale"], "bias": part["offset"]}
            continue
        if "feedforward_mlp_torso" in path:
            inner = path.endswith("mlp/~") or "/mlp" in path
            layer = f"hidden_{int(short.removeprefix('linear_')) + 1}" if inner else "hidden_0"
        else:
            layer = "mean" if short == "linear" else "std"
        parts[layer] = part
    mean = parts.pop("mean")
    output = [mean, parts.pop("std")] if "std" in parts else [mean]
    parts["output"] = {x: jnp.concatenate([p[x] for p in output], axis=-1) for x in ("w", "b")}
    ours = {"norm_0": parts.pop("norm_0")}
    for name, part in parts.items():
        ours |= {f"{name}_kernel": part["w"], f"{name}_bias": part["b"]}
    return ours


def of_theirs(state: Any) -> dict[str, Any]:
    """All that they learn, by our names."""
    dual = state.dual_params
    temperatures = [dual.log_temperature, dual.log_penalty_temperature]
    critic, target = (
        {"members": jax.tree.map(lambda x: x[None], layers(each.critic_head))}
        for each in (state.params, state.target_params)
    )
    return {
        "actor": layers(state.params.policy_head),
        "critic": critic,
        "target_actor": layers(state.target_params.policy_head),
        "target_critic": target,
        "temperatures": jnp.concatenate([x for x in temperatures if x is not None]),
        "multipliers": jnp.stack([dual.log_alpha_mean, dual.log_alpha_stddev]),
    }


def of_ours(state: mpo.State) -> dict[str, Any]:
    """The same of our State."""
    return {
        "actor": state.actor.parameters.params,
        "critic": state.critic.parameters.params,
        "target_actor": state.target_actor.params,
        "target_critic": state.target_critic.params,
        "temperatures": state.duals.parameters.temperatures,
        "multipliers": state.duals.parameters.multipliers,
    }


def with_parameters(state: mpo.State, known: dict[str, Any]) -> mpo.State:
    """Our State in float64, with these parameters."""
    state = exact(state)
    actor = state.actor.parameters.replace(params=known["actor"])
    critic = state.critic.parameters.replace(params=known["critic"])
    dual = Duals(known["temperatures"], known["multipliers"])
    return state.replace(
        actor=state.actor.replace(parameters=actor),
        critic=state.critic.replace(parameters=critic),
        duals=state.duals.replace(parameters=dual),
        target_actor=state.target_actor.replace(params=known["target_actor"]),
        target_critic=state.target_critic.replace(params=known["target_critic"]),
    )


def exact(tree: Any) -> Any:
    """A tree whose floats are float64."""
    return jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64 if jnp.issubdtype(x.dtype, jnp.floating) else None),
        tree,
    )


def spread(params: Any, seed: int) -> Any:
    """Parameters moved at random, so that actions and values differ."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + 0.2 * generator.normal(size=x.shape), params)


def their_noise(key: Any, config: mpo.Config) -> Any:
    """The standard normal numbers [N, 2 B, A] of their next update: all s before all s'."""
    from tensorflow_probability.substrates import jax as probability  # pyright: ignore[reportMissingImports]

    zeros = jnp.zeros((2, ACTION), jnp.float64)
    gaussian = probability.distributions.MultivariateNormalDiag(zeros, zeros + 1.0)
    keys = jax.random.split(key, BATCH + 1)[1:]
    drawn = jax.vmap(lambda key: gaussian.sample(config.num_actions, seed=key))(keys)
    return jnp.moveaxis(drawn, 0, 2).reshape(config.num_actions, 2 * BATCH, ACTION)


def compared(peer: Path, updates: int, changes: dict[str, Any]) -> dict[str, Any]:
    """The largest relative differences after `updates` of both, from the same start."""
    config = config_of(changes)
    learner = their_learner(peer, config)
    theirs = exact(jax.tree.map(lambda x: x[0], learner._state._replace(random_key=None)))
    theirs = theirs._replace(
        params=spread(theirs.params, 0),
        target_params=spread(theirs.target_params, 1),
        random_key=jax.random.PRNGKey(1),
    )
    step = jax.jit(jax.vmap(learner._sgd_step, axis_name="data"))
    known = of_theirs(theirs)
    spec = EnvSpec("Example-v0", (OBSERVATION,), ACTION)
    state = with_parameters(mpo.init(jax.random.key(0), spec, config), known)

    @jax.jit
    def update(state: mpo.State, batch: Transition, noise: Any, number: Any) -> Any:
        with given_noise({"normal": [noise]}):
            return mpo.update(state, batch, jax.random.key(0), number, config)

    losses: dict[str, list[float]] = {"critic": [], "policy and duals": []}
    for number, batch in enumerate(batches(updates)):
        noise = their_noise(theirs.random_key, config)
        discount = batch.extras["discount"]
        rows = imported(peer).types.Transition(
            observation=batch.observation,
            action=batch.action,
            reward=batch.reward,
            discount=discount * (1.0 - batch.terminated),
            next_observation=batch.next_observation,
        )
        theirs, metrics = jax.tree.map(
            lambda x: x[0], step(*jax.tree.map(lambda x: jnp.asarray(x)[None], (theirs, rows)))
        )
        more = batch.replace(extras={"discount": config.discount * discount})
        state, mine = update(state, jax.tree.map(jnp.asarray, more), noise, number)
        factor = 1.0 if config.value_head == "c51" else 0.5
        losses["critic"].append(relative(factor * mine["critic/loss"], metrics["loss/critic_loss"]))
        both = mine["actor/loss"] + mine["dual/loss"]
        losses["policy and duals"].append(relative(both, metrics["loss/policy_loss"]))
    last, ours = of_theirs(theirs), of_ours(state)
    return {
        "losses": {name: max(values) for name, values in losses.items()},
        "parameters": {name: distance(known[name], last[name], ours[name]) for name in last},
    }


def main() -> None:
    """Compare all cases, and write the differences."""
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, functools.partial(compared, options.peer))


if __name__ == "__main__":
    main()
