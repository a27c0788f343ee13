"""EXPO's updates beside those of the authors' unmodified classes: the same first parameters, the
same rows, and the same random numbers.

  python scripts/updates/offline/compare_expo.py --peer qam --authors EXPO \
      --output results/checks/references/expo.json

The folder `qam` has ColinQiyangLi/qam of GitHub at f93efd2, whose fedit.py has a flow and edits.
The folder `EXPO` has pd-perry/EXPO at bbd5713, which its fork Servo97/EXPO holds, too. There the
base is a diffusion policy: what draws its actions is our flow here. Each of its functions is given
the networks from before the update, and targets follow the critics from before it: the page of EXPO
says so. Distributions of TensorFlow Probability are those of distrax in both.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rljax.agents import expo
from rljax.networks import Network
from scripts.updates import shared, stand_ins
from scripts.updates.offline import compare_qc
from scripts.updates.offline.compare_qc import LENGTH, SMALL
from scripts.updates.shared import ACTION, ACTOR, distance, exact


class Case(NamedTuple):
    """Our settings, and whose class is beside us."""

    ours: Mapping[str, Any]
    by_authors: bool = False


EDITED = {"edit_source": "flow", "keep_unedited": False, "pessimism": 0.5, "edit_scale": 0.3}
CASES = {
    "QAM's authors": Case({**EDITED, "num_candidates": 1}),
    "QAM's authors, four candidates": Case({**EDITED, "num_candidates": 4, "pessimism": 0.0}),
    "QAM's authors, single actions": Case({**EDITED, "chunk_length": 1, "pessimism": 0.0}),
    "EXPO's authors": Case({"chunk_length": 1}, by_authors=True),
    "EXPO's authors, large edits": Case({"chunk_length": 1, "edit_scale": 0.7}, by_authors=True),
}


def config_of(case: Case) -> expo.Config:
    """Our settings, in layers of the comparison's width."""
    config = expo.Config(hidden=ACTOR, **{"chunk_length": LENGTH, **case.ours})
    if not case.by_authors:
        return config
    # Their density is of edits times their scale, and their networks are not FQL's.
    share = 0.5 + float(np.log(config.edit_scale))
    changes: Any = {"target_entropy_share": share, "activation": "relu", "layer_norm": False}
    return expo.Config(hidden=ACTOR, **{"chunk_length": 1, **case.ours, **changes})


class FlowsAndEdits:
    """QAM's authors' agent, fedit.py."""

    def __init__(self, peer: Path, config: expo.Config) -> None:
        module, data = compare_qc.their_modules(peer, "agents.fedit")
        options = {**module.get_config(), "horizon_length": config.chunk_length}
        options |= {"actor_hidden_dims": config.hidden, "value_hidden_dims": config.hidden}
        options |= {"action_chunking": True, "rho": config.pessimism}
        options |= {"best_of_n": config.num_candidates, "edit_scale": config.edit_scale}
        rows = compare_qc.recorded()
        agent = module.FEditAgent.create(0, rows.observation[0], rows.action[0], options)
        self.agent, self.config = exact(jax.tree.map(jnp.asarray, agent)), config
        # In float32 their sums of rewards would differ by its rounding.
        self.data = compare_qc.their_data(data, exact(rows))

    def names(self) -> dict[str, str]:
        """Our losses, and theirs."""
        return {
            "critic/loss": "critic/critic_loss",
            "actor/loss": "actor/bc_flow_loss",
            "edit/loss": "actor/edit",
            "temperature/loss": "actor/edit_alpha_loss",
        }

    def update(self, i: int) -> dict[str, Any]:
        """Their losses in one update of rows that NumPy's seed `i` draws."""
        config = self.config
        batch = compare_qc.their_chunks(self.data, i, config.chunk_length, config.discount)
        self.agent, info = self.agent.update(batch)
        return {**info, "actor/edit": info["actor/edit_q_loss"] + info["actor/edit_entropy_loss"]}

    def like(self, state: expo.State) -> expo.State:
        """Our State with the numbers of their networks."""
        params, like = self.agent.network.params, compare_qc.like
        edit = compare_qc.like_gaussian(state.edit.parameters, params["modules_edit_actor"], "body")
        temperature = jnp.asarray(params["modules_alpha"]["log_value"])
        return with_parameters(
            state,
            actor=like(state.actor.parameters, params["modules_actor_bc_flow"]),
            edit=edit,
            critic=like(state.critic.parameters, params["modules_critic"]),
            log_temperature=temperature,
            target_critic=like(state.target_critic, params["modules_target_critic"]),
        )


def with_parameters(state: expo.State, target_critic: Network, **parts: Any) -> expo.State:
    """The State with other parameters."""
    trained = {name: getattr(state, name).replace(parameters=part) for name, part in parts.items()}
    return state.replace(target_critic=target_critic, **trained)


class Authors:
    """EXPO's authors' agent, whose base is our flow."""

    def __init__(self, peer: Path, config: expo.Config, state: expo.State) -> None:
        gym = importlib.import_module("gymnasium")
        names = ("spaces", "utils", "utils.seeding")
        modules = {f"gym.{name}": importlib.import_module(f"gymnasium.{name}") for name in names}
        with stand_ins.importing(peer, {"gym": gym, **modules}) as imported:
            self.module = imported("expo.agents.sac.expo_learner")
            rows = compare_qc.recorded()
            agent = self.module.EXPOLearner.create(
                0,
                rows.observation[0],
                rows.action[0],
                hidden_dims=config.hidden,
                num_qs=config.num_critics,
                num_min_qs=config.min_critics,
                backup_entropy=False,
                N=config.num_candidates,
                n_edit_samples=config.num_candidates,
                edit_action_scale=config.edit_scale,
                decay_steps=None,
            )
        self.agent, self.config = exact(jax.tree.map(jnp.asarray, agent)), config
        self.flow = state  # in whose place the State of each update comes
        # Environments clip actions, and so do ours: here their critics see clipped ones.
        for name in ("critic", "target_critic"):
            part = getattr(self.agent, name)
            clipped = part.replace(apply_fn=functools.partial(on_clipped, part.apply_fn))
            self.agent = self.agent.replace(**{name: clipped})

    def names(self) -> dict[str, str]:
        """Our losses, and theirs."""
        return {"critic/loss": "critic_loss", "edit/loss": "edit_loss", "edit/entropy": "entropy"}

    def update(self, i: int) -> dict[str, Any]:
        """Their losses in one update of rows that NumPy's seed `i` draws."""
        rows = jax.tree.map(lambda x: jnp.asarray(x[compare_qc.drawn(i, 1)]), compare_qc.recorded())
        batch = {
            "observations": rows.observation,
            "actions": rows.action,
            "next_observations": rows.next_observation,
            "rewards": rows.reward,
            "masks": 1.0 - jnp.asarray(rows.terminated, jnp.float32),
        }
        old, batch = self.agent, exact(batch)
        with mock.patch.object(self.module, "ddpm_train_sampler", self.of_flow):
            new, info = old.update_critic(batch)
        edit, edit_info = old.update_edit_actor(batch)
        temperature, _ = old.update_temperature(edit_info["entropy"])
        target = optax.incremental_update(
            old.critic.params, old.target_critic.params, self.config.target_rate
        )
        self.agent = old.replace(
            critic=new.critic,
            target_critic=old.target_critic.replace(params=target),
            edit_actor=edit.edit_actor,
            temp=temperature.temp,
        )
        # Theirs is the density of edits times their scale.
        shift = ACTION * np.log(self.config.edit_scale)
        weight = jnp.exp(old.temp.params["log_temp"])
        info |= {"edit_loss": edit_info["edit_actor_loss"] + weight * shift}
        return {**info, "entropy": edit_info["entropy"] - shift}

    def of_flow(self, *arguments: Any, **_: Any) -> tuple[Any, Any]:
        """The actions of our flow in place of those of their base."""
        observation, key = arguments[5], arguments[3]
        noise = jax.random.normal(key, (len(observation), ACTION))
        return expo.decode(self.flow, observation, noise, self.config), key

    def like(self, state: expo.State) -> expo.State:
        """Our State with the numbers of their networks; the flow is ours."""
        agent = self.agent
        return with_parameters(
            state,
            edit=compare_qc.like_gaussian(state.edit.parameters, agent.edit_actor.params, "body"),
            critic=like_critic(state.critic.parameters, agent.critic.params),
            log_temperature=jnp.asarray(agent.temp.params["log_temp"]),
            target_critic=like_critic(state.target_critic, agent.target_critic.params),
        )


def on_clipped(
    apply: Any, variables: Any, observation: Any, action: Any, *others: Any, **options: Any
) -> Any:
    """Values of actions in [-1, 1]."""
    return apply(variables, observation, jnp.clip(action, -1.0, 1.0), *others, **options)


def like_critic(network: Network, tree: Mapping[str, Any]) -> Network:
    """Our critics with the numbers of EXPO's."""
    (member,) = tree.values()
    layers = {name.replace("Dense", "hidden"): layer for name, layer in member["MLP_0"].items()}
    members = {"members": {**layers, "output": member["Dense_0"]}}
    params = jax.tree.map(lambda _, new: jnp.asarray(new), network.params, members)
    return network.replace(params=params)


@contextlib.contextmanager
def same_numbers(num_critics: int) -> Iterator[None]:
    """Inside, random numbers depend on their number alone, and pairs of critics on their turn."""
    turns = itertools.cycle(np.random.RandomState(3).permutation(num_critics)[:4].reshape(2, 2))

    def choice(*_: Any, **__: Any) -> Any:
        return jnp.asarray(next(turns))

    with compare_qc.same_numbers(), mock.patch.object(jax.random, "choice", choice):
        yield


def compared(peers: Mapping[bool, Path], updates: int, case: Case) -> dict[str, float]:
    """The largest relative differences of losses, and of parameters after all updates."""
    config = config_of(case)
    length = config.chunk_length
    state = exact(expo.init(jax.random.key(0), SMALL, config))
    if case.by_authors:
        theirs: Any = Authors(peers[True], config, state)
    else:
        theirs = FlowsAndEdits(peers[False], config)
    first = state = theirs.like(state)
    prepared = compare_qc.prepared()
    update = jax.jit(functools.partial(expo.update, config=config))
    differences = dict.fromkeys(theirs.names(), 0.0)
    with same_numbers(config.num_critics), stand_ins.old_names():
        for i in range(updates):
            theirs.flow = state
            info = theirs.update(i)
            chunks = compare_qc.our_chunks(prepared, i, length)
            state, metrics = update(state, chunks, jax.random.key(0), jnp.asarray(i))
            compare_qc.keep_largest(differences, metrics, info, theirs.names())
    other = theirs.like(state)
    for name in ("actor", "edit", "critic", "log_temperature"):
        if name != "actor" or not case.by_authors:
            trees = (getattr(x, name).parameters for x in (first, state, other))
            differences[name] = distance(*trees)
    differences["targets"] = distance(*(x.target_critic for x in (first, state, other)))
    return differences


def main() -> None:
    parser: argparse.ArgumentParser = shared.parser(__doc__)
    parser.add_argument("--authors", type=Path, required=True, help="checkout of EXPO's code")
    options = parser.parse_args()
    peers = {False: options.peer, True: options.authors}
    shared.report(options, CASES, functools.partial(compared, peers))


if __name__ == "__main__":
    main()
