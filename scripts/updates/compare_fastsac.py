"""Updates of FastSAC and of its authors' code (PyTorch),
from the same parameters, on the same batches and with the same noise.

  git clone https://github.com/amazon-far/holosoma && git -C holosoma checkout fc600e7
  python -m venv peer && peer/bin/pip install torch jax flax optax distrax
  PYTHONPATH=. peer/bin/python scripts/updates/compare_fastsac.py --peer holosoma \
      --output results/checks/references/fastsac.json

All is in float64, and the networks have a few units. The authors' two methods are cut out of their
class, whose file imports simulators, unchanged, and run with their networks, whose layer norms have
our epsilon. Their actor moves where ours does, every fourth update. With `--times` four updates of
critics and one of the actor, at their width, are timed in turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import fastsac
from scripts.checks.compare_updates import given_noise
from scripts.updates import compare_fasttd3, shared
from scripts.updates.compare_fasttd3 import layers, of_ours, with_parameters
from scripts.updates.shared import ACTION, BATCH, OBSERVATION, distance, exact

CONFIG = fastsac.Config(
    hidden=(32, 16, 8),
    critic_hidden=(32, 16, 8),
    bins=21,
    v_min=-10.0,
    v_max=10.0,
    init_temperature=0.1,
    actor_lr=3e-3,
    critic_lr=3e-3,
    temperature_lr=3e-3,
)
CASES: dict[str, dict[str, Any]] = {
    "their settings": {},
    "a target entropy of half the actions": {"target_entropy_share": 0.5},
    "three steps, clipped returns": {"n_step": 3, "v_min": -2.0, "v_max": 2.0},
}
FOLDER = Path("src/holosoma/holosoma/agents/fast_sac")
METHODS = ("_update_main", "_update_pol")
# Their sizes on CheetahRun's shapes, with a batch that a core can bear.
FULL = fastsac.Config(batch_size=1_024)
SHAPES = (17, 6)


def their_code(peer: Path) -> types.ModuleType:
    """The authors' networks."""
    spec: Any = importlib.util.spec_from_file_location("fast_sac", peer / FOLDER / "fast_sac.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def their_learner(
    peer: Path, config: fastsac.Config, shapes: tuple[int, int] = (OBSERVATION, ACTION)
) -> types.SimpleNamespace:
    """The authors' networks, optimisers and methods for our settings."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    torch.manual_seed(0)
    code = their_code(peer)
    assert config.critic_hidden is not None
    inputs = {"all": {"start": 0, "end": shapes[0], "size": shapes[0]}}
    sizes = {"obs_indices": inputs, "obs_keys": ["all"], "n_act": shapes[1]}
    limits = {name: float(getattr(config, name)) for name in ("log_std_min", "log_std_max")}
    ends = {"num_atoms": config.bins, "v_min": float(config.v_min), "v_max": float(config.v_max)}
    critic = {**sizes, **ends, "hidden_dim": config.critic_hidden[0]}
    alpha = math.log(config.init_temperature)
    learner = types.SimpleNamespace(
        actor=code.Actor(**sizes, **limits, num_envs=1, hidden_dim=config.hidden[0]),
        qnet=code.Critic(**critic),
        qnet_target=code.Critic(**critic),
        log_alpha=torch.tensor([alpha], requires_grad=True),
        target_entropy=-shapes[1] * float(config.target_entropy_share),
        scaler=torch.amp.GradScaler(enabled=False),
        _maybe_amp=contextlib.nullcontext,
        is_multi_gpu=False,
        device="cpu",
        config=types.SimpleNamespace(
            gamma=float(config.discount), use_autotune=True, max_grad_norm=0.0
        ),
    )
    learner.qnet_target.load_state_dict(learner.qnet.state_dict())
    for network in (learner.actor, learner.qnet, learner.qnet_target):
        for part in network.modules():
            if isinstance(part, torch.nn.LayerNorm):
                part.eps = 1e-6
    adam = functools.partial(torch.optim.AdamW, betas=(0.9, float(config.second_moment)))
    decay = {"weight_decay": float(config.weight_decay or 0.0)}
    learner.q_optimizer = adam(learner.qnet.parameters(), lr=float(config.critic_lr), **decay)
    learner.actor_optimizer = adam(learner.actor.parameters(), lr=float(config.actor_lr), **decay)
    learner.alpha_optimizer = adam([learner.log_alpha], lr=float(config.temperature_lr))
    namespace = {"torch": torch, "F": torch.nn.functional, "TensorDict": dict}
    methods = shared.cut_out(peer / FOLDER / "fast_sac_agent.py", METHODS, namespace)
    for name, method in methods.items():
        setattr(learner, name, functools.partial(method, learner))
    return learner


def of_actor(actor: Any) -> dict[str, Any]:
    """The parameters of their actor, whose two last layers are one of ours."""
    mean, log_std = (layers([x])["output"] for x in (*actor.fc_mu, actor.fc_logstd))
    both = {name: np.concatenate([mean[name], log_std[name]], axis=-1) for name in mean}
    known = layers([*actor.net, *actor.fc_mu])
    return known | {"output": both}


def of_critic(critic: Any) -> dict[str, Any]:
    """The parameters of their critics."""
    each = [layers(net.net) for net in critic.qnets]
    return {"members": jax.tree.map(lambda *x: np.stack(x), *each)}


def of_peer(learner: Any) -> dict[str, Any]:
    """All that theirs learns, in the form of ours."""
    return {
        "actor": of_actor(learner.actor),
        "critic": of_critic(learner.qnet),
        "target_critic": of_critic(learner.qnet_target),
    }


def theirs(batch: Transition, lengths: np.ndarray) -> dict[str, Any]:
    """A batch as their methods take it: critics see what the actor sees."""
    data = compare_fasttd3.theirs(batch, lengths)
    critics = "critic_observations"
    now, later = ({critics: x["observations"]} for x in (data, data["next"]))
    return data | now | {"next": data["next"] | later}


def learn(learner: Any, data: Any, noise: Any, step: int, config: fastsac.Config) -> None:
    """One update by their methods, in the order of their loop."""
    import torch  # pyright: ignore[reportMissingImports]

    draws = mock.Mock(side_effect=[torch.tensor(x) for x in noise])
    with mock.patch("torch.distributions.normal._standard_normal", draws):
        learner._update_main(data)
        if step % config.policy_delay == config.policy_delay - 1:
            learner._update_pol(data)
    rate = float(config.target_rate)
    with torch.no_grad():
        pairs = zip(learner.qnet.parameters(), learner.qnet_target.parameters(), strict=True)
        for online, target in pairs:
            target.mul_(1.0 - rate).add_(online, alpha=rate)


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """How far both lie apart after `updates` updates, relative to how far theirs have moved."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_default_dtype(torch.float64)
    config = dataclasses.replace(CONFIG, **changes)
    learner = their_learner(peer, config)
    first, rows = of_peer(learner), compare_fasttd3.batches(updates, config.n_step)
    noise = np.random.default_rng(2).normal(size=(updates, 2, BATCH, ACTION))
    spec = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)
    init = jax.jit(fastsac.init, static_argnums=1)
    state = exact(with_parameters(init(jax.random.key(0), spec, config), first))
    start = state.log_temperature.parameters

    @jax.jit
    def update(state: Any, batch: Transition, noise: Any, step: Any) -> Any:
        with given_noise({"normal": list(noise)}):
            return fastsac.update(state, batch, jax.random.key(0), step, config)[0]

    for step, (batch, lengths) in enumerate(rows):
        discount = {"discount": float(config.discount) ** lengths} if config.n_step > 1 else {}
        state = update(state, batch.replace(extras=discount), noise[step], jnp.asarray(step))
        learn(learner, theirs(batch, lengths), noise[step], step, config)
    mine, last = of_ours(state), of_peer(learner)
    results = {name: distance(first[name], mine[name], last[name]) for name in mine}
    alpha = learner.log_alpha.detach().numpy()
    results["log_temperature"] = distance(start, state.log_temperature.parameters, alpha)
    return results


def seconds(peer: Path) -> dict[str, Any]:
    """Processor's seconds of four updates of critics and one of the actor, in turns."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_default_dtype(torch.float32)
    learner = their_learner(peer, FULL, SHAPES)
    batch = compare_fasttd3.random_rows(FULL.batch_size, SHAPES)
    data = theirs(batch, np.ones(FULL.batch_size, np.int64))
    spec = EnvSpec("test/Example-v0", SHAPES[:1], SHAPES[1])
    state = fastsac.init(jax.random.key(0), spec, FULL)
    noise = np.zeros((2, FULL.batch_size, SHAPES[1]), np.float32)

    @jax.jit
    def ours() -> Any:
        once = lambda state, step: fastsac.update(state, batch, jax.random.key(0), step, FULL)  # noqa: E731
        return jax.lax.scan(once, state, jnp.arange(4))[0]

    def their_four() -> None:
        for step in range(4):
            learn(learner, data, noise, step, FULL)

    measured = shared.seconds_in_turns({"ours": ours, "theirs": their_four}, rounds=7, calls=2)
    return {
        "batch": FULL.batch_size,
        "seconds of four updates": measured,
        "ratio": measured["theirs"] / measured["ours"],
    }


def main() -> None:
    """Compare all cases, or measure, and write the differences."""
    options = shared.timed_parser(__doc__).parse_args()
    shared.report_or_time(options, CASES, compared, seconds, options.peer)


if __name__ == "__main__":
    main()
