"""Updates of FastTD3 and of its authors' code (PyTorch),
from the same parameters, on the same batches and with the same noise.

  git clone https://github.com/younggyoseo/FastTD3 && git -C FastTD3 checkout 229ed59
  python -m venv peer && peer/bin/pip install torch jax flax optax distrax
  PYTHONPATH=. peer/bin/python scripts/updates/compare_fasttd3.py --peer FastTD3 \
      --output results/checks/references/fasttd3.json

All is in float64, and the networks have a few units. The authors' three functions are nested in
their script, so that their source is cut out of it, unchanged, and run with their networks. With
`--times` one update of critics and one of the actor, at a width of theirs, are timed in turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import fasttd3
from scripts.checks.compare_updates import given_noise
from scripts.updates import compare_td7, shared
from scripts.updates.shared import ACTION, BATCH, OBSERVATION, distance, exact

CONFIG = fasttd3.Config(
    hidden=(32, 16, 8),
    critic_hidden=(32, 16, 8),
    bins=21,
    v_min=-10.0,
    v_max=10.0,
    target_noise=0.2,
    discount=0.97,
    actor_lr=3e-3,
    critic_lr=3e-3,
)
CASES: dict[str, dict[str, Any]] = {
    "smallest of two critics": {},
    "each critic its own": {"target_value": "own"},
    "three steps, clipped returns": {"n_step": 3, "v_min": -2.0, "v_max": 2.0},
}
FUNCTIONS = ("update_main", "update_pol", "soft_update")
# Their sizes on CheetahRun's shapes, with a batch that a core can bear.
FULL = fasttd3.Config(batch_size=1_024)
SHAPES = (17, 6)


def their_code(peer: Path) -> types.ModuleType:
    """The authors' networks."""
    with mock.patch.object(sys, "path", [str(peer / "fast_td3"), *sys.path]):
        import fast_td3  # pyright: ignore[reportMissingImports]
    return fast_td3


def their_learner(
    peer: Path, config: fasttd3.Config, shapes: tuple[int, int] = (OBSERVATION, ACTION)
) -> dict[str, Any]:
    """The authors' networks, optimisers and functions for our settings."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    torch.manual_seed(0)
    code, no_norm = their_code(peer), {"sim_type": "", "sim_dimension": 64, "seq_len": 8}
    assert config.critic_hidden is not None
    sizes = {"n_obs": shapes[0], "n_act": shapes[1]}
    ends = {"num_atoms": config.bins, "v_min": float(config.v_min), "v_max": float(config.v_max)}
    critic = {**sizes, **ends, "hidden_dim": config.critic_hidden[0], **no_norm}
    parts: dict[str, Any] = {
        "actor": code.Actor(
            **sizes, num_envs=1, init_scale=0.01, hidden_dim=config.hidden[0], **no_norm
        ),
        "qnet": code.Critic(**critic),
        "qnet_target": code.Critic(**critic),
    }
    parts["qnet_target"].load_state_dict(parts["qnet"].state_dict())
    decay = {"weight_decay": float(config.weight_decay or 0.0)}
    for name, network, rate in (("q", "qnet", "critic_lr"), ("actor", "actor", "actor_lr")):
        rate = float(getattr(config, rate))
        optimiser = torch.optim.AdamW(list(parts[network].parameters()), lr=rate, **decay)
        parts[f"{name}_optimizer"] = optimiser
    args = types.SimpleNamespace(
        disable_bootstrap=False,
        gamma=float(config.discount),
        use_cdq=config.target_value == "smallest",
        use_grad_norm_clipping=False,
    )
    namespace = {
        **parts,
        "args": args,
        "envs": types.SimpleNamespace(asymmetric_obs=False),
        "autocast": lambda **_: contextlib.nullcontext(),
        "scaler": torch.amp.GradScaler(enabled=False),
        "policy_noise": float(config.target_noise),
        "noise_clip": float(config.target_noise_clip),
        "action_low": -1.0,
        "action_high": 1.0,
        "device": "cpu",
        "torch": torch,
        "F": torch.nn.functional,
        "TensorDict": dict,
    }
    namespace |= dict.fromkeys(("amp_device_type", "amp_dtype", "amp_enabled"))
    return parts | shared.cut_out(peer / "fast_td3" / "train.py", FUNCTIONS, namespace)


def layers(modules: Any) -> dict[str, Any]:
    """Their linear layers, and norms between them, under our names."""
    parts = [x for x in modules if hasattr(x, "weight")]
    both = [(x.weight.detach().numpy(), x.bias.detach().numpy().copy()) for x in parts]
    linear = [{"kernel": weight.T.copy(), "bias": bias} for weight, bias in both if weight.ndim > 1]
    norms = [{"scale": weight.copy(), "bias": bias} for weight, bias in both if weight.ndim == 1]
    named = {f"hidden_{i}": x for i, x in enumerate(linear[:-1])} | {"output": linear[-1]}
    return named | {f"norm_{i}": x for i, x in enumerate(norms)}


def of_actor(actor: Any) -> dict[str, Any]:
    """The parameters of their actor."""
    return layers([*actor.net, *actor.fc_head, *actor.fc_mu])


def of_critic(critic: Any) -> dict[str, Any]:
    """The parameters of their critics."""
    each = [layers([*net.net, *net.fc_head]) for net in (critic.qnet1, critic.qnet2)]
    return {"members": jax.tree.map(lambda *x: np.stack(x), *each)}


def of_peer(learner: Mapping[str, Any]) -> dict[str, Any]:
    """All that theirs learns, in the form of ours."""
    return {
        "actor": of_actor(learner["actor"]),
        "critic": of_critic(learner["qnet"]),
        "target_critic": of_critic(learner["qnet_target"]),
    }


def of_ours(state: Any) -> dict[str, Any]:
    """The same of our State, FastSAC's too."""
    networks = (state.actor.parameters, state.critic.parameters, state.target_critic)
    names = ("actor", "critic", "target_critic")
    return {name: x.params for name, x in zip(names, networks, strict=True)}


def with_parameters(state: Any, known: Mapping[str, Any]) -> Any:
    """Our State with these parameters."""
    parts = {
        name: compare_td7.with_parameters(getattr(state, name), x) for name, x in known.items()
    }
    return state.replace(**parts)


def batches(updates: int, steps: int) -> list[tuple[Transition, np.ndarray]]:
    """Batches with the lengths of their sums of rewards, from 1 to `steps`."""
    generator = np.random.default_rng(1)
    drawn = exact(shared.batches(updates))
    return [
        (
            batch.replace(truncated=generator.random(BATCH) < 0.2),
            generator.integers(1, steps + 1, BATCH),
        )
        for batch in drawn
    ]


def theirs(batch: Transition, lengths: np.ndarray) -> dict[str, Any]:
    """A batch as their functions take it: episodes also end where they are cut."""
    import torch  # pyright: ignore[reportMissingImports]

    tensor = lambda x: torch.tensor(np.asarray(x))  # noqa: E731
    return {
        "observations": tensor(batch.observation),
        "actions": tensor(batch.action),
        "next": {
            "observations": tensor(batch.next_observation),
            "rewards": tensor(batch.reward),
            "dones": tensor(batch.terminated | batch.truncated).long(),
            "truncations": tensor(~batch.terminated & batch.truncated).long(),
            "effective_n_steps": tensor(lengths),
        },
    }


def their_updates(
    learner: Mapping[str, Any], rows: list[tuple[Transition, np.ndarray]], config: Any, noise: Any
) -> None:
    """Let the authors' code learn, in the order of its loop."""
    import torch  # pyright: ignore[reportMissingImports]

    for step, (batch, lengths) in enumerate(rows):
        data = theirs(batch, lengths)
        with mock.patch.object(torch, "randn_like", lambda _, x=noise[step]: torch.tensor(x)):
            learner["update_main"](data, {})
        if step % config.policy_delay == 1:
            learner["update_pol"](data, {})
        learner["soft_update"](learner["qnet"], learner["qnet_target"], float(config.target_rate))


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """How far both lie apart after `updates` updates, relative to how far theirs have moved."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_default_dtype(torch.float64)
    config = dataclasses.replace(CONFIG, **changes)
    learner = their_learner(peer, config)
    first, rows = of_peer(learner), batches(updates, config.n_step)
    noise = np.random.default_rng(2).normal(size=(updates, BATCH, ACTION))
    spec = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)
    init = jax.jit(fasttd3.init, static_argnums=1)
    state = exact(with_parameters(init(jax.random.key(0), spec, config), first))

    @jax.jit
    def update(state: Any, batch: Transition, noise: Any, step: Any) -> Any:
        with given_noise({"normal": [noise]}):
            return fasttd3.update(state, batch, jax.random.key(0), step, config)[0]

    for step, (batch, lengths) in enumerate(rows):
        discount = {"discount": float(config.discount) ** lengths} if config.n_step > 1 else {}
        state = update(state, batch.replace(extras=discount), noise[step], jnp.asarray(step))
    their_updates(learner, rows, config, noise)
    mine, last = of_ours(state), of_peer(learner)
    return {name: distance(first[name], mine[name], last[name]) for name in mine}


def random_rows(number: int, shapes: tuple[int, int]) -> Transition:
    """A batch of normal numbers, in which no episode ends."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return generator.normal(size=(number, *shape)).astype(np.float32)

    never = np.zeros(number, bool)
    parts = (normal(shapes[0]), np.tanh(normal(shapes[1])), normal(), never, never)
    return Transition(*parts, normal(shapes[0]))  # pyright: ignore[reportArgumentType]


def seconds(peer: Path) -> dict[str, Any]:
    """Processor's seconds of two updates of critics and one of the actor, in turns."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_default_dtype(torch.float32)
    learner = their_learner(peer, FULL, SHAPES)
    batch = random_rows(FULL.batch_size, SHAPES)
    data = theirs(batch, np.ones(FULL.batch_size, np.int64))
    spec = EnvSpec("test/Example-v0", SHAPES[:1], SHAPES[1])
    state = fasttd3.init(jax.random.key(0), spec, FULL)

    @jax.jit
    def ours() -> Any:
        once = lambda state, step: fasttd3.update(state, batch, jax.random.key(0), step, FULL)  # noqa: E731
        return jax.lax.scan(once, state, jnp.arange(2))[0]

    def their_two() -> None:
        for step in range(2):
            learner["update_main"](data, {})
            if step == 1:
                learner["update_pol"](data, {})
            learner["soft_update"](learner["qnet"], learner["qnet_target"], 0.1)

    measured = shared.seconds_in_turns({"ours": ours, "theirs": their_two}, rounds=7, calls=2)
    return {
        "batch": FULL.batch_size,
        "seconds of two updates": measured,
        "ratio": measured["theirs"] / measured["ours"],
    }


def main() -> None:
    """Compare all cases, or measure, and write the differences."""
    options = shared.timed_parser(__doc__).parse_args()
    shared.report_or_time(options, CASES, compared, seconds, options.peer)


if __name__ == "__main__":
    main()
