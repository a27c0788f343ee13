"""Updates of DPPO and of its authors' code (PyTorch), from the same parameters, on the same
rollouts and with the same noise.

  git clone https://github.com/irom-princeton/dppo && git -C dppo checkout cc7234a
  python -m venv peer && peer/bin/pip install torch jax flax optax distrax
  PYTHONPATH=. peer/bin/python scripts/updates/compare_dppo.py --peer dppo \
      --output results/checks/references/dppo.json
  PYTHONPATH=. peer/bin/python scripts/updates/compare_dppo.py --peer dppo --times --output FILE

All is in float64, and the networks have a few units. Their whole iteration runs unmodified: `run`
of `TrainPPODiffusionAgent` draws chains from `PPODiffusion` in an environment whose answers are
made up, and learns from them. Three things are set from outside: standard deviations of advantages
are those of all rows, in place of a sample's; the growth of noise is computed in float64 (ours is
rounded to float32); and where gradients have a limit, the critic's has it, too. Their networks have
no residual connections here, rewards are not scaled, and no episode is cut: there their advantages
go on into the next episode.

With `--times` one iteration, a rollout and the learning from it, is timed in turns, in float32, of
the sizes in `FULL`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import dppo
from rljax.networks import distributions
from scripts.updates import shared
from scripts.updates.shared import ACTION, OBSERVATION, distance, exact, relative

STEPS, ENVS, T, K = 8, 4, 6, 4
SPEC = EnvSpec("test/Example", (OBSERVATION,), ACTION)
CONFIG = dppo.Config(
    num_envs=ENVS,
    num_steps=STEPS,
    num_epochs=2,
    batch_size=16,
    denoising_steps=T,
    tuned_steps=K,
    hidden=(16, 16),
    critic_hidden=(24, 24),
    normalise_rewards=False,
)
# The authors' widths and steps; each pass over a rollout is one minibatch.
FULL: dict[str, Any] = {
    "hidden": (512,) * 3,
    "critic_hidden": (256,) * 3,
    "denoising_steps": 20,
    "tuned_steps": 10,
    "num_envs": 40,
    "num_steps": 25,
    "batch_size": 1_000,
    "num_epochs": 5,
    "target_kl": None,
}
CASES: dict[str, dict[str, Any]] = {
    "DPPO": {},
    "limits that differ by step": {"clip_first": 1e-3, "clip_ratio": 0.05, "step_discount": 0.8},
    "all steps, and imitation": {"tuned_steps": T, "imitation_weight": 0.1},
    "a critic first": {"critic_warmup": 3, "max_grad_norm": 0.1, "num_epochs": 1},
    "other noise": {"noise_min": 0.2, "density_min": 0.05, "noise_clip": 0.5},
    "two steps, clipped values": {"tuned_steps": 2, "clip_values": True, "clip_ratio": 0.02},
}
# Our metric, and its place in what their loss returns
LOSSES = {
    "actor/loss": 0,
    "critic/loss": 2,
    "actor/clipped": 3,
    "actor/kl": 4,
    "actor/imitation": 6,
}
ABSENT = (
    *("einops.layers", "einops.layers.torch", "env", "env.gym_utils"),
    *("hydra", "omegaconf", "wandb", "tqdm"),
)


def layers(linear: Any) -> dict[str, Any]:
    """The parameters of their linear layers under our names."""
    names = [f"hidden_{i}" for i in range(len(linear) - 1)] + ["output"]
    result = {}
    for name, part in zip(names, linear, strict=True):
        weight, bias = (x.detach().numpy().copy() for x in (part.weight, part.bias))
        result[name] = {"kernel": weight.T, "bias": bias}
    return result


def of_mlp(module: Any) -> dict[str, Any]:
    """The same of one of their MLPs."""
    return layers([part.linear_1 for part in module.moduleList])


def of_denoiser(module: Any) -> dict[str, Any]:
    """The same of one of their denoisers."""
    time = [module.time_embedding[i] for i in (1, 3)]
    return {"time_0": layers(time), "body": of_mlp(module.mlp_mean)}


def of_peer(model: Any) -> dict[str, Any]:
    """All their parameters, in the form of ours."""
    return {
        "actor": of_denoiser(model.actor_ft),
        "base": of_denoiser(model.actor),
        "critic": of_mlp(model.critic.Q1),
    }


def of_ours(state: dppo.State) -> dict[str, Any]:
    """The same of our State."""
    networks = {
        "actor": state.actor.parameters,
        "base": state.base,
        "critic": state.critic.parameters,
    }
    return {name: network.params for name, network in networks.items()}


def with_parameters(state: dppo.State, params: Mapping[str, Any]) -> dppo.State:
    """Our State with these parameters."""
    given = jax.tree.map(jnp.asarray, dict(params))

    def moved(trained: Any, name: str) -> Any:
        return trained.replace(parameters=trained.parameters.replace(params=given[name]))

    return state.replace(
        actor=moved(state.actor, "actor"),
        base=state.base.replace(params=given["base"]),
        critic=moved(state.critic, "critic"),
    )


def rows_of(iteration: int, config: dppo.Config) -> dict[str, np.ndarray]:
    """What both see in one iteration: made-up experience, noise, and orders of steps."""
    generator = np.random.default_rng(iteration)
    size, steps = (config.num_steps, config.num_envs), config.denoising_steps
    pairs, batch = size[0] * size[1] * config.tuned_steps, config.batch_size * config.tuned_steps
    number = config.num_epochs * (pairs // batch)
    return {
        "observation": generator.normal(size=(size[0] + 1, size[1], OBSERVATION)),
        "reward": 3.0 * generator.normal(size=size),
        "terminated": generator.random(size) < 0.2,
        "start": generator.normal(size=(*size, ACTION)),
        "noise": generator.normal(size=(steps, *size, ACTION)),
        "orders": np.stack([generator.permutation(pairs) for _ in range(config.num_epochs)]),
        # of the base's chains, for each minibatch
        "base start": generator.normal(size=(number, batch, ACTION)),
        "base noise": generator.normal(size=(number, steps, batch, ACTION)),
    }


def config_of(changes: Mapping[str, Any]) -> dppo.Config:
    """Our settings."""
    return dataclasses.replace(CONFIG, **changes)


def einops() -> types.ModuleType:
    """As much of the package as their iteration uses: two axes become one."""
    module: Any = types.ModuleType("einops")
    module.rearrange = lambda x, pattern: x.reshape(-1, *x.shape[2:])
    return module


@contextlib.contextmanager
def their_code(peer: Path) -> Iterator[None]:
    """Their modules can be imported, without packages that this part does not use."""
    stubs: dict[str, Any] = {name: mock.MagicMock() for name in ABSENT}
    with (
        mock.patch.dict(sys.modules, stubs | {"einops": einops()}),
        mock.patch.object(sys, "path", [str(peer), *sys.path]),
    ):
        yield


def their_learner(peer: Path, config: dppo.Config, precision: str = "float64") -> Any:
    """Their agent with all that an iteration reads."""
    import torch  # pyright: ignore[reportMissingImports]

    precise = getattr(torch, precision)
    torch.set_default_dtype(precise)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with their_code(peer):
        from agent.finetune import (  # pyright: ignore[reportMissingImports]
            train_ppo_diffusion_agent as script,
        )
        from model.common.critic import CriticObs  # pyright: ignore[reportMissingImports]
        from model.diffusion import diffusion  # pyright: ignore[reportMissingImports]
        from model.diffusion.diffusion_ppo import (  # pyright: ignore[reportMissingImports]
            PPODiffusion,
        )
        from model.diffusion.mlp_diffusion import (  # pyright: ignore[reportMissingImports]
            DiffusionMLP,
        )
        from util.scheduler import (  # pyright: ignore[reportMissingImports]
            CosineAnnealingWarmupRestarts,
        )
    growth = functools.partial(diffusion.cosine_beta_schedule, dtype=precise)
    with mock.patch.object(diffusion, "cosine_beta_schedule", growth):
        model = PPODiffusion(
            actor=DiffusionMLP(
                ACTION,
                1,
                OBSERVATION,
                config.embedding,
                list(config.hidden),
                activation_type="Mish",
            ),
            critic=CriticObs(OBSERVATION, list(config.critic_hidden)),
            horizon_steps=1,
            obs_dim=OBSERVATION,
            action_dim=ACTION,
            device="cpu",
            denoising_steps=config.denoising_steps,
            ft_denoising_steps=config.tuned_steps,
            randn_clip_value=config.noise_clip,
            min_sampling_denoising_std=config.noise_min,
            min_logprob_denoising_std=config.density_min,
            gamma_denoising=config.step_discount,
            clip_ploss_coef=config.clip_ratio,
            clip_ploss_coef_base=config.clip_first,
            clip_ploss_coef_rate=config.clip_growth,
            clip_vloss_coef=config.clip_ratio if config.clip_values else None,
            norm_adv=config.normalise_advantages,
        )
    optimisers = {
        "actor": torch.optim.AdamW(model.actor_ft.parameters(), config.actor_lr, weight_decay=0),
        "critic": torch.optim.AdamW(model.critic.parameters(), config.critic_lr, weight_decay=0),
    }
    if config.max_grad_norm is not None:
        parameters, limit = list(model.critic.parameters()), config.max_grad_norm

        def limited(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(parameters, limit)

        optimisers["critic"].register_step_pre_hook(limited)
    learner = object.__new__(script.TrainPPODiffusionAgent)
    imitates = config.imitation_weight is not None
    for name, optimiser in optimisers.items():
        rate = getattr(config, f"{name}_lr")
        constant = {"first_cycle_steps": 1000, "max_lr": rate, "min_lr": rate}
        setattr(learner, f"{name}_optimizer", optimiser)
        scheduler = CosineAnnealingWarmupRestarts(optimiser, **constant)
        setattr(learner, f"{name}_lr_scheduler", scheduler)
    learner.__dict__.update(
        model=model,
        device="cpu",
        itr=0,
        force_train=True,
        val_freq=1,
        reset_at_iteration=True,
        n_envs=config.num_envs,
        n_steps=config.num_steps,
        n_cond_step=1,
        obs_dim=OBSERVATION,
        action_dim=ACTION,
        act_steps=1,
        horizon_steps=1,
        reward_horizon=1,
        batch_size=config.batch_size * config.tuned_steps,
        logprob_batch_size=config.num_steps * config.num_envs,
        update_epochs=config.num_epochs,
        gamma=config.discount,
        gae_lambda=config.trace_decay,
        reward_scale_running=False,
        reward_scale_const=config.reward_scale,
        ent_coef=0,
        vf_coef=1.0,
        target_kl=config.target_kl,
        max_grad_norm=config.max_grad_norm,
        n_critic_warmup_itr=config.critic_warmup,
        use_bc_loss=imitates,
        bc_loss_coeff=config.imitation_weight or 0.0,
        learn_eta=False,
        furniture_sparse_reward=False,
        best_reward_threshold_for_success=0,
        save_full_observations=False,
        save_trajs=False,
        save_model=lambda: None,
        save_model_freq=1,
        log_freq=1,
        render_freq=1,
        n_render=0,
        render_video=False,
        traj_plotter=None,
        use_wandb=False,
        result_path=os.devnull,
    )
    return learner


@contextlib.contextmanager
def given_numbers(numbers: Iterator[np.ndarray], orders: Iterator[np.ndarray]) -> Iterator[None]:
    """Inside, their normal numbers and orders are these, in float64."""
    import torch  # pyright: ignore[reportMissingImports]

    def normal(shape: Any, **_: Any) -> Any:
        return torch.tensor(next(numbers)).reshape(shape)

    def order(*_: Any, **__: Any) -> Any:
        return torch.tensor(next(orders))

    def of_all(x: Any) -> Any:
        return x.var(unbiased=False).sqrt()

    with (
        mock.patch.object(torch, "randn", normal),
        mock.patch.object(torch, "randn_like", lambda x: normal(x.shape)),
        mock.patch.object(torch, "randperm", order),
        mock.patch.object(torch.Tensor, "std", of_all),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


class Environment:
    """Answers of theirs, whatever the actions."""

    def __init__(self, rows: Mapping[str, np.ndarray]) -> None:
        self.rows, self.time = rows, 0

    def reset(self, **_: Any) -> dict[str, np.ndarray]:
        return {"state": self.rows["observation"][0][:, None]}

    def step(self, action: Any) -> tuple[Any, ...]:
        del action
        reward, terminated = (self.rows[name][self.time] for name in ("reward", "terminated"))
        self.time += 1
        observation = {"state": self.rows["observation"][self.time][:, None]}
        return observation, reward, terminated, np.zeros_like(terminated), {}


def prepare(learner: Any, rows: Mapping[str, np.ndarray]) -> None:
    """Let their `run` make one iteration more, with these answers."""
    environment = Environment(rows)
    learner.venv, learner.reset_env_all = environment, environment.reset
    learner.n_train_itr = learner.itr + 1


def their_iteration(
    learner: Any, rows: Mapping[str, np.ndarray], config: dppo.Config
) -> tuple[np.ndarray, dict[str, Any]]:
    """The chains of their rollout, and what their losses were."""
    model = learner.model
    records, drawn = [], []
    numbers = [x for t in range(config.num_steps) for x in (rows["start"][t], *rows["noise"][:, t])]
    if config.imitation_weight is not None:
        pairs = zip(rows["base start"], rows["base noise"], strict=True)
        numbers += [x for start, noise in pairs for x in (start, *noise)]
    loss, forward = model.loss, model.forward

    def recorded_loss(*inputs: Any, **options: Any) -> Any:
        outputs = loss(*inputs, **options)
        records.append([float(getattr(x, "detach", lambda x=x: x)()) for x in outputs])
        return outputs

    def recorded_forward(**options: Any) -> Any:
        sample = forward(**options)
        drawn.append(sample.chains.numpy()[:, :, 0])
        return sample

    prepare(learner, rows)
    with (
        given_numbers(iter(numbers), iter(rows["orders"])),
        mock.patch.object(model, "loss", recorded_loss),
        mock.patch.object(model, "forward", recorded_forward),
        contextlib.redirect_stdout(None),
    ):
        learner.run()
    means = np.mean(records, axis=0)
    return np.stack(drawn[: config.num_steps]), {name: means[i] for name, i in LOSSES.items()}


@functools.partial(jax.jit, static_argnames=("epochs", "minibatches"))
def our_iteration(
    state: dppo.State,
    rows: Mapping[str, Any],
    step: Any,
    config: dppo.Config,
    epochs: int,
    minibatches: int,
) -> tuple[dppo.State, Any, dict[str, Any]]:
    """Our State after an update, our chains, and metrics."""
    key, observation = jax.random.key(0), rows["observation"][:-1]
    split = jax.vmap(jax.random.split)
    each = split(jax.random.split(key, epochs))
    draws = jax.vmap(lambda key: jax.random.split(key, minibatches))(each[:, 1]).reshape(-1)
    draws = split(draws)

    def place(key: Any, keys: Any) -> Any:
        same = jax.random.key_data(keys) == jax.random.key_data(key)
        return same.all(axis=1).argmax()

    def of_act(key: Any, shape: Any = ()) -> Any:
        del key
        return rows["start"] if len(shape) == 3 else rows["noise"]

    def of_base(key: Any, shape: Any = ()) -> Any:
        name, which = ("base start", 0) if len(shape) == 2 else ("base noise", 1)
        return rows[name][place(key, draws[:, which])]

    def permutation(key: Any, size: int) -> Any:
        del size
        return rows["orders"][place(key, each[:, 0])]

    with mock.patch.object(jax.random, "normal", of_act):
        action, extras = dppo.act(state, observation, key, config, explore=True)
    batch = rollout(rows).replace(action=action, extras=extras)
    with (
        mock.patch.object(distributions, "permutation", permutation),
        mock.patch.object(jax.random, "normal", of_base),
    ):
        state, metrics = dppo.update(state, batch, key, step, config)
    return state, extras["chain"], metrics


def rollout(rows: Mapping[str, Any]) -> Transition:
    """What we store [T, E, ...] of the rows, with actions of 0."""
    leading = rows["reward"].shape
    return Transition(
        observation=rows["observation"][:-1],
        action=jnp.zeros((*leading, ACTION)),
        reward=rows["reward"],
        terminated=rows["terminated"],
        truncated=jnp.zeros(leading, bool),
        next_observation=rows["observation"][1:],
    )


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences of losses, and of parameters after all updates."""
    config = config_of(changes)
    learner = their_learner(peer, config)
    state = exact(dppo.init(jax.random.key(0), SPEC, config))
    first = of_peer(learner.model)
    state = with_parameters(state, first)
    names = [x for x in LOSSES if x != "actor/imitation" or config.imitation_weight is not None]
    differences = dict.fromkeys(("chain", *names), 0.0)
    for i in range(updates):
        rows = rows_of(i, config)
        chain, theirs = their_iteration(learner, rows, config)
        given = {name: jnp.asarray(x) for name, x in rows.items()}
        number = STEPS * ENVS // config.batch_size
        state, ours, metrics = our_iteration(state, given, i, config, config.num_epochs, number)
        gaps = {name: relative(float(metrics[name]), theirs[name]) for name in names}
        gaps["chain"] = float(np.abs(ours - chain).max())
        differences = {name: float(np.maximum(x, gaps[name])) for name, x in differences.items()}
    last, ours = of_peer(learner.model), of_ours(state)
    for name in ("actor", "critic"):
        differences[name] = distance(first[name], ours[name], last[name])
    return differences


def iteration(
    state: dppo.State, batch: Transition, key: Any, step: Any, config: dppo.Config
) -> tuple[dppo.State, dict[str, Any]]:
    """Our State after the actions for observations [T, E, ...], one step after the other, and an
    update; and metrics.
    """

    def play(_: Any, inputs: Any) -> Any:
        observation, key = inputs
        return None, dppo.act(state, observation, key, config, explore=True)

    keys = jax.random.split(key, config.num_steps)
    action, extras = jax.lax.scan(play, None, (batch.observation, keys))[1]
    batch = batch.replace(action=action, extras=extras)
    return dppo.update(state, batch, key, step, config)


def times(peer: Path) -> dict[str, Any]:
    """See `shared.beside`."""
    config = config_of(FULL)
    learner, rows = their_learner(peer, config, "float32"), shared.in_float32(rows_of(0, config))

    def theirs() -> None:
        prepare(learner, rows)
        learner.run()

    state = jax.jit(dppo.init, static_argnums=1)(jax.random.key(0), SPEC, config)
    batch = rollout(jax.tree.map(jnp.asarray, rows))
    with contextlib.redirect_stdout(None):
        return shared.beside(theirs, iteration, state, batch, config, 512)


def main() -> None:
    """Compare, and print and write by how much both differ."""
    options = shared.timed_parser(__doc__).parse_args()
    shared.report_or_time(options, CASES, compared, times, options.peer)


if __name__ == "__main__":
    main()
