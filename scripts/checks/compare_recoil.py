"""Updates of ReCOIL and of its authors' code (JAX),
from the same parameters and on the same batches.

  git clone https://github.com/chufanchen/ReCOIL peer/ReCOIL
  python scripts/checks/compare_recoil.py peer/ReCOIL/offline

It needs flax, optax and tensorflow-probability. The repository is a copy of the authors', whose
last commit there is 85662f4. Nothing in an update is random: dropout is 0.
"""

from __future__ import annotations

import argparse
import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import recoil
from scripts.benchmarks.measuring import use_code

OBSERVATIONS, ACTIONS, BATCH, HIDDEN = 5, 3, 64, (32, 32)
SAME = 1e-5  # below it, parameters are equal: one step of Adam moves them by 3e-4
FLAGS = {  # the defaults of train_offline_imitate.py
    "sample_random_times": 0,
    "grad_pen": False,
    "noise": False,
    "noise_std": 0.1,
    "lambda_gp": 1,
    "max_clip": 7.0,
    "num_v_updates": 1,
    "log_loss": False,
}


def arguments(**flags: Any) -> Any:
    """The flags, as a static argument of the authors' compiled update."""
    return collections.namedtuple("Arguments", flags)(**flags)


def layers(params: Any) -> dict[str, Any]:
    """The authors' parameters of one MLP under our names."""
    body = params["MLP_0"]
    names = {"Dense_0": "hidden_0", "Dense_1": "hidden_1", "Dense_2": "output"}
    names |= {"LayerNorm_0": "norm_0", "LayerNorm_1": "norm_1"}
    result = {names[name]: layer for name, layer in body.items()}
    return result | ({"output": params["Dense_0"]} if "Dense_0" in params else {})


def of_authors(learner: Any) -> dict[str, Any]:
    """All that the authors' learner learns, in the form of ours."""
    critics = [
        [layers(model.params[f"Critic_{i}"]) for i in range(2)]
        for model in (learner.critic, learner.target_critic)
    ]
    critic, target = ({"members": jax.tree.map(lambda *x: jnp.stack(x), *pair)} for pair in critics)
    return {
        "value": layers(learner.value.params),
        "critic": critic,
        "target_critic": target,
        "actor": (layers(learner.actor.params), learner.actor.params["log_stds"]),
    }


def of_ours(state: Any) -> dict[str, Any]:
    """The same of our State."""
    actor = state.actor.parameters
    return {
        "value": state.value.parameters.params,
        "critic": state.critic.parameters.params,
        "target_critic": state.target_critic.params,
        "actor": (actor.mean.params, actor.log_std),
    }


def with_parameters(state: Any, known: dict[str, Any]) -> Any:
    """Our State with the parameters of `of_authors`."""
    actor, (params, log_std) = state.actor.parameters, known["actor"]
    actor = actor.replace(mean=actor.mean.replace(params=params), log_std=log_std)
    value = state.value.parameters.replace(params=known["value"])
    critic = state.critic.parameters.replace(params=known["critic"])
    return state.replace(
        actor=state.actor.replace(parameters=actor),
        value=state.value.replace(parameters=value),
        critic=state.critic.replace(parameters=critic),
        target_critic=state.target_critic.replace(params=known["target_critic"]),
    )


def show(updates: int, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Print by how much the parameters differ."""
    print(f"after {updates} updates:")
    for part, parameters in ours.items():
        pairs = zip(*map(jax.tree.leaves, (parameters, theirs[part])), strict=True)
        gap = np.concatenate([np.abs(np.ravel(x - y)) for x, y in pairs])
        print(
            f"  {part:<16} largest difference {gap.max():.1e}, "
            f"equal {100 * (gap < SAME).mean():.1f} %"
        )


def main() -> None:
    """Make the updates and print by how much they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("code", help="the folder offline of the authors' code")
    parser.add_argument("--updates", type=int, default=100, help="how many are made")
    parser.add_argument("--temperature", type=float, default=5.0, help="their --temp, our T")
    parser.add_argument("--value-layer-norm", action="store_true", help="as on Adroit and Kitchen")
    options = parser.parse_args()
    use_code(options.code)
    jax.tree_map = jax.tree.map  # pyright: ignore[reportAttributeAccessIssue]  # an older JAX has it
    from common import Batch, MixedBatch  # pyright: ignore[reportMissingImports]
    from learner_imitate import Learner  # pyright: ignore[reportMissingImports]

    generator = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return generator.normal(size=shape).astype(np.float32)

    norm = options.value_layer_norm
    learner = Learner(
        0,
        normal(1, OBSERVATIONS),
        normal(1, ACTIONS),
        hidden_dims=HIDDEN,
        temperature=3.0,
        dropout_rate=0.0,
        layernorm=norm,
        max_steps=1_000_000,
        loss_temp=options.temperature,
        vanilla=False,
        args=arguments(**FLAGS),
    )
    # No target equals its critic, and the critics' values are spread.
    for name in ("value", "critic", "target_critic", "actor"):
        model = getattr(learner, name)
        params = jax.tree.map(lambda x: x + 0.2 * normal(*x.shape), model.params)
        setattr(learner, name, model.replace(params=params))
    config = recoil.Config(
        hidden=HIDDEN, temperature=options.temperature, value_layer_norm=norm, decay_steps=1e6
    )
    state = recoil.init(jax.random.key(0), EnvSpec("Example-v0", (OBSERVATIONS,), ACTIONS), config)
    state = with_parameters(state, of_authors(learner))
    update = jax.jit(recoil.update)

    for step in range(options.updates):
        ends = generator.random(2 * BATCH) < 0.2
        shapes = (OBSERVATIONS, ACTIONS, OBSERVATIONS)
        observation, action, successor = (normal(2 * BATCH, size) for size in shapes)
        action, reward = np.tanh(action), normal(2 * BATCH)
        columns = (observation, action, reward, 1.0 - ends.astype(np.float32), successor)
        mixture, expert = [x[:BATCH] for x in columns], [x[BATCH:] for x in columns]
        learner.update(MixedBatch(*mixture, is_expert=np.zeros(BATCH)), Batch(*expert))
        rows = (observation, action, reward, ends, np.zeros(2 * BATCH, bool), successor)
        batch = Transition(*map(jnp.asarray, rows), extras={})
        state, _ = update(state, batch, jax.random.key(step), jnp.int32(step), config)

    show(options.updates, of_ours(state), of_authors(learner))


if __name__ == "__main__":
    main()
