"""Learners of repositories that began with ikostrikov/implicit_q_learning (JAX), beside ours.

Their parameters take our names, so that both can begin from the same ones and be compared.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

OBSERVATIONS, ACTIONS, BATCH, HIDDEN = 5, 3, 64, (32, 32)
SAME = 1e-5  # below it, parameters are equal: one step of Adam moves them by 3e-4
FLAGS = {  # the defaults of DVL's train_offline.py and ReCOIL's train_offline_imitate.py
    "sample_random_times": 0,
    "grad_pen": False,
    "noise": False,
    "noise_std": 0.1,
    "lambda_gp": 1,
    "max_clip": 7.0,
    "num_v_updates": 1,
    "log_loss": False,
}


def use_old_tree_map() -> None:
    """Give JAX the name `tree_map`, which an older one has."""
    jax.tree_map = jax.tree.map  # pyright: ignore[reportAttributeAccessIssue]


def normals(seed: int = 0) -> tuple[np.random.Generator, Callable[..., np.ndarray]]:
    """A generator, and a function that draws float32 normal numbers of a shape from it."""
    generator = np.random.default_rng(seed)
    return generator, lambda *shape: generator.normal(size=shape).astype(np.float32)


def arguments(**flags: Any) -> Any:
    """The flags, as a static argument of the authors' compiled update."""
    return collections.namedtuple("Arguments", flags)(**flags)


def spread(learner: Any, names: Iterable[str], normal: Callable[..., np.ndarray]) -> None:
    """Move the parameters of these models, so that values differ and no target is its critic."""
    for name in names:
        model = getattr(learner, name)
        params = jax.tree.map(lambda x: x + 0.2 * normal(*x.shape), model.params)
        setattr(learner, name, model.replace(params=params))


def layers(params: Any) -> dict[str, Any]:
    """The authors' parameters of one MLP under our names."""
    names = {"Dense_0": "hidden_0", "Dense_1": "hidden_1", "Dense_2": "output"}
    names |= {"LayerNorm_0": "norm_0", "LayerNorm_1": "norm_1"}
    result = {names[name]: layer for name, layer in params["MLP_0"].items()}
    return result | ({"output": params["Dense_0"]} if "Dense_0" in params else {})


def critics_of(learner: Any) -> dict[str, Any]:
    """The authors' two critics and their targets, in the form of ours."""

    def members(model: Any) -> dict[str, Any]:
        pair = [layers(model.params[f"Critic_{i}"]) for i in range(2)]
        return {"members": jax.tree.map(lambda *x: jnp.stack(x), *pair)}

    return {name: members(getattr(learner, name)) for name in ("critic", "target_critic")}


def of_authors(learner: Any) -> dict[str, Any]:
    """All that a learner with a value, critics and one actor learns, in the form of ours."""
    actor = learner.actor.params
    value = layers(learner.value.params)
    return {"value": value, **critics_of(learner), "actor": (layers(actor), actor["log_stds"])}


def of_ours(state: Any) -> dict[str, Any]:
    """The same of our State."""
    actor = state.actor.parameters
    return {
        "value": state.value.parameters.params,
        "critic": state.critic.parameters.params,
        "target_critic": state.target_critic.params,
        "actor": (actor.mean.params, actor.log_std),
    }


def with_parameters(state: Any, known: dict[str, Any], actors: Iterable[str] = ("actor",)) -> Any:
    """Our State with these parameters of value, critics and actors."""

    def trained(name: str, parameters: Any) -> Any:
        return getattr(state, name).replace(parameters=parameters)

    changes = {}
    for name in ("value", "critic"):
        network = getattr(state, name).parameters
        changes[name] = trained(name, network.replace(params=known[name]))
    for name in actors:
        actor, (params, log_std) = getattr(state, name).parameters, known[name]
        actor = actor.replace(mean=actor.mean.replace(params=params), log_std=log_std)
        changes[name] = trained(name, actor)
    return state.replace(
        **changes, target_critic=state.target_critic.replace(params=known["target_critic"])
    )


def show(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Print by how much the parameters differ."""
    for part, parameters in ours.items():
        pairs = zip(*map(jax.tree.leaves, (parameters, theirs[part])), strict=True)
        gap = np.concatenate([np.abs(np.ravel(x - y)) for x, y in pairs])
        print(
            f"  {part:<16} largest difference {gap.max():.1e}, "
            f"equal {100 * (gap < SAME).mean():.1f} %"
        )
