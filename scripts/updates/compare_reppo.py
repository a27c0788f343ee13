"""REPPO's updates beside those of the authors' unmodified code: the same first parameters, rollout,
minibatches and noise.

  python scripts/updates/compare_reppo.py --peer reppo --output results/checks/references/reppo.json
  python scripts/updates/compare_reppo.py --peer reppo --times

The folder `reppo` has cvoelcker/reppo of GitHub at a7ab85b. Their rollout and their learning step
are run as they are; simulators and tools that do not matter here are stood in for, and the
environment is a table of random numbers. Minibatches are in the order of the rollout, and every
normal number is that of a fixed seed: the same for each step of time. In the case "ends" some steps
end episodes; there their sum of rewards counts the entropy at the next episode's first state, which
is taken out of it before they learn. Truncated steps are not compared: theirs have no true
successor, and drop out of the critic's loss. Nor are squared errors: there their actor's loss
subtracts values [B, 1] from log-probabilities [B].
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rljax.agent import EnvSpec, Transition
from rljax.agents import reppo
from rljax.buffers import rollout as rollouts
from rljax.networks import Network
from scripts.updates import shared, stand_ins
from scripts.updates.shared import ACTION, OBSERVATION, distance, exact, relative


class Sizes(NamedTuple):
    """Sizes of a rollout, its minibatches and the networks."""

    observation: int = OBSERVATION
    action: int = ACTION
    envs: int = 4
    steps: int = 8
    batch: int = 16
    width: int = 16
    bins: int = 21


SMALL = Sizes()
# The authors' networks, on HalfCheetah's shapes, with rollouts that a core can bear.
FULL = Sizes(observation=17, action=6, envs=64, steps=32, batch=512, width=512, bins=151)
CASES: dict[str, dict[str, Any]] = {
    "no ends": {},
    "ends": {"ends": True},
    "without norms": {"ends": True, "layer_norm": False},
}
ABSENT = ("hydra", "optuna", "plotly", "plotly.graph_objs", "omegaconf", "wandb")
SIMULATORS = "src.env_utils.jax_wrappers"


class Clock(NamedTuple):
    """A table's state."""

    time: Any
    truncated: Any


class Table(types.SimpleNamespace):
    """Environments that show the rows of a table, whatever the actions are."""

    def observation_space(self, params: Any) -> Any:
        """Those of the actor and of the critic."""
        del params
        return (types.SimpleNamespace(shape=(self.sizes.observation,)),) * 2

    def action_space(self, params: Any) -> Any:
        """See `observation_space`."""
        del params
        return types.SimpleNamespace(shape=(self.sizes.action,))

    def step(self, key: Any, state: Any, action: Any) -> Any:
        """The next row."""
        del key, action
        time = state.time + 1
        observation = self.observations[time]
        following = Clock(time, jnp.zeros(self.sizes.envs))
        row = (self.rewards[state.time], self.ends[state.time], {})
        return observation, observation, following, *row


def table(ends: bool, sizes: Sizes = SMALL) -> Table:
    """Random numbers, of which none or a few rows end episodes."""
    generator, rows = np.random.default_rng(0), (sizes.steps, sizes.envs)
    flags = generator.random(rows) < (0.2 if ends else 0.0)
    shape = (sizes.steps + 1, sizes.envs, sizes.observation)
    return Table(
        num_envs=sizes.envs,
        sizes=sizes,
        observations=jnp.asarray(generator.normal(size=shape) * 2.0),
        rewards=jnp.asarray(generator.normal(size=rows)),
        ends=jnp.asarray(flags),
    )


@contextlib.contextmanager
def same_numbers() -> Iterator[None]:
    """Inside, normal numbers repeat those of one step of time, and rows keep their order."""
    step = np.random.RandomState(1).normal(size=SMALL.envs * SMALL.action)

    def normal(key: Any, shape: Any = (), *_: Any, **__: Any) -> Any:
        return jnp.asarray(np.resize(step, int(np.prod(shape)))).reshape(shape)

    def unchanged(key: Any, rows: Any, *_: Any, **__: Any) -> Any:
        return jnp.arange(rows)

    with (
        mock.patch.object(jax.random, "normal", normal),
        mock.patch.object(jax.random, "permutation", unchanged),
        mock.patch.object(rollouts, "permutation", unchanged),
    ):
        yield


def config_of(changes: Mapping[str, Any], sizes: Sizes = SMALL) -> reppo.Config:
    """Our settings of a case. Their ends of the support, +-10, are centres of the outer bins."""
    settings = {name: value for name, value in changes.items() if name != "ends"}
    end = 10.0 + 10.0 / (sizes.bins - 1)
    return reppo.Config(
        num_envs=sizes.envs,
        num_steps=sizes.steps,
        batch_size=sizes.batch,
        hidden=(sizes.width, sizes.width),
        critic_hidden=(sizes.width,),
        embedding_size=sizes.width,
        bins=sizes.bins,
        v_min=-end,
        v_max=end,
        normalise_rewards=False,
        **settings,
    )


def their_code(peer: Path) -> Any:
    """The authors' module."""
    absent = {name: mock.MagicMock() for name in ABSENT}
    absent["hydra"].main = lambda **_: lambda function: function
    wrappers = types.ModuleType(SIMULATORS)
    for name in ("BraxGymnaxWrapper", "MjxGymnaxWrapper", "NormalizeVec"):
        setattr(wrappers, name, None)
    wrappers.LogWrapper = lambda env, _: env  # type: ignore[attr-defined]
    wrappers.ClipAction = lambda env: env  # type: ignore[attr-defined]
    with stand_ins.importing(peer, {**absent, SIMULATORS: wrappers}) as imported:
        network: Any = imported("src.networks.jax_models").FCNN
        network.__setattr__ = with_lists(network.__setattr__)
        return imported("src.jaxrl.reppo")


def with_lists(set_attribute: Any) -> Any:
    """The function, as Flax has it since it no longer takes plain lists of layers."""

    def changed(module: Any, name: str, value: Any) -> None:
        set_attribute(module, name, nnx.List(value) if isinstance(value, list) else value)

    return changed


def their_config(code: Any, config: reppo.Config) -> Any:
    """Their settings with the numbers of ours."""
    return code.ReppoConfig(
        lr=config.learning_rate,
        gamma=config.discount,
        total_time_steps=config.num_steps * config.num_envs,
        num_steps=config.num_steps,
        lmbda=config.trace_decay,
        lmbda_min=0.5,
        num_mini_batches=config.num_steps * config.num_envs // config.batch_size,
        num_envs=config.num_envs,
        num_epochs=config.num_epochs,
        max_grad_norm=config.max_grad_norm,
        normalize_env=False,
        polyak=1.0,
        exploration_noise_min=1.0,
        exploration_noise_max=1.0,
        exploration_base_envs=0,
        ent_start=config.init_temperature,
        ent_target_mult=config.target_entropy_share,
        kl_start=config.init_multiplier,
        num_eval=1,
        critic_hidden_dim=config.embedding_size,
        actor_hidden_dim=config.embedding_size,
        vmin=-10.0,
        vmax=10.0,
        num_bins=config.bins,
        hl_gauss=config.value_head == "hl_gauss",
        kl_bound=config.kl_bound,
        aux_loss_mult=config.prediction_cost,
        use_critic_norm=config.layer_norm == "rms",
        use_actor_norm=config.layer_norm == "rms",
        num_critic_encoder_layers=2,
        num_critic_head_layers=2,
        num_critic_pred_layers=2,
        num_actor_layers=3,
        actor_kl_clip_mode="clipped",
    )


def their_learner(code: Any, settings: Any, env: Table) -> tuple[Any, Any, Any]:
    """Their first state, and the functions within theirs that roll out and that learn."""
    train = code.make_train_fn(settings, env)
    inner = dict(zip(train.__code__.co_freevars, train.__closure__, strict=True))
    collect, learn = (inner[name].cell_contents for name in ("collect_rollout", "learn_step"))
    start = env.observations[0]
    first = Clock(jnp.zeros((), int), jnp.zeros(env.num_envs))
    reset = types.SimpleNamespace(info={"steps": jnp.zeros(env.num_envs)})
    unused = types.SimpleNamespace(unwrapped=lambda: reset, set_env_state=lambda _: None)
    env.reset = lambda key, params: (start, start, unused)
    state = code.make_init(settings, env)(jax.random.PRNGKey(0))
    return jax.tree.map(jnp.asarray, state.replace(last_env_state=first)), collect, learn


def part(tree: Any, *names: str) -> dict[str, Any]:
    """Our names for the layers of their network at a place in a tree."""
    for name in names:
        tree = tree[name]
    layers = [tree["input_layer"], *dict(tree.get("main_layers", {})).values()]
    params: dict[str, Any] = {}
    for i, layer in enumerate(layers):
        parts = layer["layers"]
        params[f"hidden_{i}"] = numbers(parts[0])
        if len(parts) > 1:
            params[f"norm_{i}"] = numbers(parts[1])
    return params | {"output": numbers(tree["output_layer"]["layers"][0])}


def numbers(layer: Any) -> dict[str, Any]:
    """A layer's parameters as arrays."""
    return {name: jnp.asarray(getattr(x, "value", x)) for name, x in dict(layer).items()}


def ours(tree: Any) -> dict[str, Any]:
    """The parameters of their actor or critic, by our names."""
    tree = tree.to_pure_dict()
    if "actor_module" in tree:
        return part(tree, "actor_module")
    names = {"features": "feature_module", "head": "critic_module", "prediction": "pred_module"}
    params = {name: part(tree, module) for name, module in names.items()}
    # Theirs predicts the reward first, ours last.
    last = params["prediction"]["output"]
    params["prediction"]["output"] = {k: jnp.roll(x, -1, axis=-1) for k, x in last.items()}
    return params | ({"start": tree["zero_dist"]} if "zero_dist" in tree else {})


def like(network: Network, tree: Any) -> Network:
    """Our network with the numbers of theirs."""
    params = jax.tree.map(lambda _, new: jnp.asarray(new), network.params, ours(tree))
    return network.replace(params=params)


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences after an update of each network for each minibatch."""
    config = config_of(
        {"num_epochs": max(1, updates // (SMALL.steps * SMALL.envs // SMALL.batch)), **changes}
    )
    code, env = their_code(peer), table(bool(changes.get("ends")))
    with same_numbers(), stand_ins.old_names():
        theirs, collect, learn = their_learner(code, their_config(code, config), env)
        theirs = exact(theirs)
        rollout, theirs = collect(key=jax.random.PRNGKey(0), train_state=theirs)
        soft = jnp.where(rollout.done, rollout.reward, rollout.soft_reward)
        rollout = rollout.replace(soft_reward=soft)
        spec = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)
        state = exact(reppo.init(jax.random.key(0), spec, config))
        policy, critic = state.policy.parameters, state.critic.parameters
        policy = policy.replace(actor=like(policy.actor, theirs.actor.params))
        critic = like(critic, theirs.critic.params)
        first = state.replace(
            policy=state.policy.replace(parameters=policy),
            critic=state.critic.replace(parameters=critic),
        )
        batch = Transition(
            observation=rollout.obs,
            action=rollout.action,
            reward=rollout.reward,
            terminated=rollout.done,
            truncated=jnp.zeros_like(rollout.done),
            next_observation=env.observations[1:],
        )
        step = jnp.asarray(0)
        state, metrics = jax.jit(reppo.update)(first, batch, jax.random.key(0), step, config)
        theirs, info = jax.jit(learn)(jax.random.PRNGKey(0), theirs, rollout)
    found = {"mean target": relative(metrics["critic/target"], info["target_values"].mean())}
    after = (state.policy.parameters.actor, state.critic.parameters)
    trees = (theirs.actor.params, theirs.critic.params)
    for name, before, now, tree in zip(
        ("actor", "critic"), (policy.actor, critic), after, trees, strict=True
    ):
        found[name] = distance(before.params, now.params, like(now, tree).params)
    pure = theirs.actor.params.to_pure_dict()
    for name, log in (("temperature", "log_temperature"), ("lagrangian", "log_multiplier")):
        mine = getattr(state.policy.parameters, log)
        found[log] = relative(mine, pure[f"{name}_log_param"][0])
    return found


def times(peer: Path) -> dict[str, Any]:
    """Processor's seconds of one iteration, a rollout in the table and its updates, in turns."""
    config, env = config_of({}, FULL), table(False, FULL)
    spec = EnvSpec("test/Example-v0", (FULL.observation,), FULL.action)
    code, key = their_code(peer), jax.random.PRNGKey(0)
    with stand_ins.old_names():
        first, collect, learn = their_learner(code, their_config(code, config), env)

        @jax.jit
        def theirs() -> Any:
            rollout, state = collect(key=key, train_state=first)
            return learn(key, state, rollout)

        jax.block_until_ready(theirs())
    state = reppo.init(jax.random.key(0), spec, config)

    def step(row: Any, key: Any) -> tuple[Any, Transition]:
        observation, following, reward, ended = row
        action, _ = reppo.act(state, observation, key, config, explore=True)
        never = jnp.zeros_like(ended)
        return None, Transition(observation, action, reward, ended, never, following)

    @jax.jit
    def ours() -> Any:
        rows = (env.observations[:-1], env.observations[1:], env.rewards, env.ends)
        keys = jax.random.split(jax.random.key(0), FULL.steps)
        batch = jax.lax.scan(lambda _, x: step(*x), None, (rows, keys))[1]
        return reppo.update(state, batch, jax.random.key(1), jnp.asarray(0), config)

    seconds = shared.seconds_in_turns({"ours": ours, "theirs": theirs}, rounds=5, calls=1)
    return {
        "sizes": FULL._asdict(),
        "seconds of an iteration": seconds,
        "ratio": seconds["theirs"] / seconds["ours"],
    }


def main() -> None:
    """Compare all cases, or measure, and write the differences."""
    options = shared.timed_parser(__doc__).parse_args()
    shared.report_or_time(options, CASES, compared, times, options.peer)


if __name__ == "__main__":
    main()
