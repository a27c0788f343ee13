"""Updates of ReinFlow and of its authors' code (PyTorch), from the same parameters, on the same
rollouts and with the same noise.

  git clone https://github.com/ReinFlow/ReinFlow && git -C ReinFlow checkout aed2819
  python -m venv peer && peer/bin/pip install torch jax flax optax distrax
  PYTHONPATH=. peer/bin/python scripts/updates/compare_reinflow.py --peer ReinFlow \
      --output results/checks/references/reinflow.json
  PYTHONPATH=. peer/bin/python scripts/updates/compare_reinflow.py --peer ReinFlow --times \
      --output FILE

All is in float64, and the networks have a few units. Their policy and loss (`PPOFlow`), the
buffer with its advantages, and the learning step are unmodified. Three things are set from
outside: time enters their network as a number, as in ours, in place of an embedding; standard
deviations of advantages are those of all rows, in place of a sample's; and drawing takes the times
k / K that their loss has: as it stands it takes k / (K - 1), and their own check of the first
ratio then stops the run. Rewards are not scaled, and no episode is cut: there their advantages go
on into the next episode.

With `--times` one learning step is timed in turns, in float32, of the sizes in `FULL`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import reinflow
from rljax.buffers import rollout as rollouts
from rljax.networks.heads import chains
from scripts.updates import shared
from scripts.updates.shared import ACTION, OBSERVATION, distance, exact, relative

STEPS, ENVS, K = 8, 4, 4
ITERATIONS = 20  # of the run whose shares the schedules have
SPEC = EnvSpec("test/Example", (OBSERVATION,), ACTION)
CONFIG = reinflow.Config(
    num_envs=ENVS,
    num_steps=STEPS,
    num_epochs=2,
    batch_size=16,
    flow_steps=K,
    hidden=(16, 16),
    noise_hidden=(8, 8),
    critic_hidden=(24, 24),
    activation="mish",
    normalise_rewards=False,
)
# The authors' widths; each pass over a rollout is one minibatch.
FULL: dict[str, Any] = {
    "hidden": (512,) * 3,
    "noise_hidden": (64, 64),
    "critic_hidden": (256,) * 3,
    "num_envs": 40,
    "num_steps": 25,
    "batch_size": 1_000,
    "num_epochs": 5,
    "target_kl": None,
}
CASES: dict[str, dict[str, Any]] = {
    "ReinFlow": {},
    "limits that bite": {"log_prob_limit": 0.2, "clip_ratio": 0.001, "noise_clip": 0.5},
    "a critic first": {"critic_warmup": 3, "max_grad_norm": 0.1},
    "clipped values": {"clip_values": True, "clip_ratio": 0.02},
    "other noise": {"noise_min": 0.02, "noise_max": 0.6, "noise_hold": 0.1, "noise_left": 0.2},
}
# Our metric, and its place in what their loss returns
LOSSES = {
    "actor/loss": 0,
    "actor/entropy": 1,
    "critic/loss": 2,
    "actor/clipped": 4,
    "actor/kl": 5,
    "actor/noise": 13,
    "critic/value": 14,
}
ABSENT = ("einops", "einops.layers", "einops.layers.torch", "tqdm", "timm", "timm.models")


def layers(module: Any) -> dict[str, Any]:
    """The parameters of one of their networks under our names."""
    names = [f"hidden_{i}" for i in range(len(module.moduleList) - 1)] + ["output"]
    result = {}
    for name, part in zip(names, module.moduleList, strict=True):
        weight, bias = part.linear_1.weight, part.linear_1.bias
        weight, bias = (x.detach().numpy().copy() for x in (weight, bias))
        result[name] = {"kernel": weight.T, "bias": bias}
    return result


def time_last(params: Mapping[str, Any]) -> dict[str, Any]:
    """A network of noise whose first input, the time, is the last one."""
    first = params["hidden_0"]
    moved = {**first, "kernel": np.roll(first["kernel"], -1, axis=0)}
    return {**params, "hidden_0": moved}


def of_peer(model: Any) -> dict[str, Any]:
    """All that their model learns, in the form of ours."""
    return {
        "flow": {"body": layers(model.actor_ft.policy.mlp_mean)},
        "noise": time_last(layers(model.actor_ft.explore_noise_net.mlp_logvar)),
        "critic": layers(model.critic.Q1),
    }


def of_ours(state: reinflow.State) -> dict[str, Any]:
    """The same of our State."""
    policy = state.actor.parameters
    networks = {"flow": policy.flow, "noise": policy.noise, "critic": state.critic.parameters}
    return {name: network.params for name, network in networks.items()}


def with_parameters(state: reinflow.State, params: Mapping[str, Any]) -> reinflow.State:
    """Our State with these parameters."""
    given = jax.tree.map(jnp.asarray, dict(params))
    policy, critic = state.actor.parameters, state.critic
    flow = policy.flow.replace(params=given["flow"])
    noise = policy.noise.replace(params=given["noise"])
    policy = policy.replace(flow=flow, noise=noise)
    parameters = critic.parameters.replace(params=given["critic"])
    return state.replace(
        actor=state.actor.replace(parameters=policy), critic=critic.replace(parameters=parameters)
    )


def rows_of(iteration: int, config: reinflow.Config) -> dict[str, np.ndarray]:
    """What both see in one iteration: made-up experience, noise, and orders of rows."""
    generator = np.random.default_rng(iteration)
    size = (config.num_steps, config.num_envs)
    orders = [generator.permutation(size[0] * size[1]) for _ in range(config.num_epochs)]
    return {
        "observation": generator.normal(size=(size[0] + 1, size[1], OBSERVATION)),
        "reward": 3.0 * generator.normal(size=size),
        "terminated": generator.random(size) < 0.2,
        "start": generator.normal(size=(*size, ACTION)),
        "noise": generator.normal(size=(size[0], config.flow_steps, size[1], ACTION)),
        "orders": np.stack(orders),
    }


def config_of(changes: Mapping[str, Any]) -> reinflow.Config:
    """Our settings, with shares as numbers of steps."""
    config = dataclasses.replace(CONFIG, **changes)
    return reinflow.schedule(config, ITERATIONS * STEPS * ENVS)


@contextlib.contextmanager
def their_code(peer: Path) -> Iterator[None]:
    """Their modules can be imported, without packages that this part does not use."""
    stubs = {name: mock.MagicMock() for name in ABSENT if name not in sys.modules}
    with (
        mock.patch.dict(sys.modules, stubs),
        mock.patch.object(sys, "path", [str(peer), *sys.path]),
    ):
        yield


def their_model(peer: Path, config: reinflow.Config, precision: str) -> Any:
    """Their policy with its critic."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_default_dtype(getattr(torch, precision))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with their_code(peer):
        from model.common.critic import CriticObs  # pyright: ignore[reportMissingImports]
        from model.flow.ft_ppo.ppoflow import PPOFlow  # pyright: ignore[reportMissingImports]
        from model.flow.mlp_flow import FlowMLP  # pyright: ignore[reportMissingImports]
    flow = FlowMLP(1, ACTION, OBSERVATION, 1, list(config.hidden), activation_type="Mish")
    flow.time_embedding = torch.nn.Identity()
    limit, clip = config.log_prob_limit, config.clip_ratio
    low, high = config.noise_min, config.noise_max
    return PPOFlow(
        device="cpu",
        policy=flow,
        critic=CriticObs(OBSERVATION, list(config.critic_hidden)),
        actor_policy_path=None,
        act_dim=ACTION,
        horizon_steps=1,
        act_min=-1,
        act_max=1,
        obs_dim=OBSERVATION,
        cond_steps=1,
        noise_scheduler_type="learn_decay",
        inference_steps=config.flow_steps,
        ft_denoising_steps=config.flow_steps,
        randn_clip_value=config.noise_clip,
        min_sampling_denoising_std=low,
        min_logprob_denoising_std=low,
        logprob_min=-limit,
        logprob_max=limit,
        clip_ploss_coef=clip,
        clip_ploss_coef_base=clip,
        clip_ploss_coef_rate=3,
        clip_vloss_coef=clip if config.clip_values else None,
        denoised_clip_value=1.0,
        max_logprob_denoising_std=high,
        time_dim_explore=0,
        learn_explore_time_embedding=False,
        use_time_independent_noise=False,
        noise_hidden_dims=list(config.noise_hidden),
        logprob_debug_sample=False,
        logprob_debug_recalculate=False,
        explore_net_activation_type="Tanh",
    )


def their_learner(peer: Path, config: reinflow.Config, precision: str = "float64") -> Any:
    """Their model with all that their learning step reads."""
    import torch  # pyright: ignore[reportMissingImports]

    model = their_model(peer, config, precision)
    with their_code(peer):
        from agent.finetune.reinflow import buffer  # pyright: ignore[reportMissingImports]
        from util.scheduler_simple import get_scheduler  # pyright: ignore[reportMissingImports]
    script = peer / "agent" / "finetune" / "reinflow" / "train_ppo_flow_agent.py"
    names = ("agent_update", "minibatch_generator")
    parts = shared.cut_out(script, names, {"torch": torch, "np": np, "PPOFlow": object})
    sizes = (config.num_steps, config.num_envs, config.flow_steps, 1, 1, ACTION, 1, OBSERVATION)
    rates = (config.discount, config.trace_decay, config.reward_scale)
    run = ITERATIONS * config.num_steps * config.num_envs
    hold = config.noise_hold / run
    left = config.noise_left
    learner = SimpleNamespace(
        model=model,
        buffer=buffer.PPOFlowBuffer(*sizes, False, False, 0.0, False, *rates, "cpu"),
        bound=get_scheduler(
            "cosine",
            max=config.noise_max,
            hold_steps=round(ITERATIONS * hold),
            anneal_steps=round(ITERATIONS * (1.0 - hold)),
            min=config.noise_min * (1.0 - left) + config.noise_max * left,
        ),
        actor_optimizer=torch.optim.AdamW(
            model.actor_ft.parameters(), lr=config.actor_lr, weight_decay=0
        ),
        critic_optimizer=torch.optim.AdamW(
            model.critic.parameters(), lr=config.critic_lr, weight_decay=0
        ),
        lr_schedule="fixed",
        target_kl=config.target_kl,
        n_steps=config.num_steps,
        n_envs=config.num_envs,
        update_epochs=config.num_epochs,
        batch_size=config.batch_size,
        max_grad_norm=config.max_grad_norm,
        n_critic_warmup_itr=config.critic_warmup,
        ent_coef=config.entropy_cost,
        device="cpu",
        repeat_samples=False,
        use_bc_loss=False,
        bc_loss_type=None,
        normalize_denoising_horizon=True,
        normalize_act_space_dim=True,
        clip_intermediate_actions=True,
        account_for_initial_stochasticity=True,
        initial_ratio_error_threshold=1e-6,
        vf_coef=1.0,
        bc_coeff=0.0,
        actor_update_freq=1,
        actor_update_epoch=1,
    )
    learner.minibatch_generator = functools.partial(parts["minibatch_generator"], learner)
    learner.agent_update = functools.partial(parts["agent_update"], learner, verbose=False)
    return learner


@contextlib.contextmanager
def given_numbers(numbers: Iterator[np.ndarray], orders: Iterator[np.ndarray]) -> Iterator[None]:
    """Inside, their normal numbers and orders are these, in float64, and times are k / K."""
    import torch  # pyright: ignore[reportMissingImports]

    line = torch.linspace

    def normal(mean: Any, std: Any) -> Any:
        return mean + std * torch.tensor(next(numbers)).reshape(mean.shape)

    def order(*_: Any, **__: Any) -> Any:
        return torch.tensor(next(orders))

    def times(start: Any, end: Any, steps: int, **options: Any) -> Any:
        return line(start, 1.0 - 1.0 / steps if end == 1 else end, steps, **options)

    def of_all(x: Any) -> Any:
        return x.var(unbiased=False).sqrt()

    with (
        mock.patch.object(torch, "normal", normal),
        mock.patch.object(torch, "linspace", times),
        mock.patch.object(torch, "randperm", order),
        mock.patch.object(torch.Tensor, "std", of_all),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def their_iteration(
    learner: Any, rows: Mapping[str, np.ndarray], iteration: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """The log-probabilities of their rollout, and what their losses were."""
    model, steps = learner.model, len(rows["reward"])
    each = [x for t in range(steps) for x in (rows["start"][t], *rows["noise"][t])]
    records = []

    def loss(*inputs: Any, **options: Any) -> Any:
        outputs = type(model).loss(model, *inputs, **options)
        records.append([float(getattr(x, "detach", lambda x=x: x)()) for x in outputs])
        return outputs

    with given_numbers(iter(each), iter(rows["orders"])), mock.patch.object(model, "loss", loss):
        fill_buffer(learner, rows)
        learner.itr = iteration
        learner.agent_update()
    low = model.actor_ft.min_logprob_denoising_std
    model.actor_ft.explore_noise_net.set_noise_range([low, learner.bound(iteration)])
    means = np.mean(records, axis=0)
    metrics = {name: means[place] for name, place in LOSSES.items()}
    metrics["actor/entropy"] *= -1.0
    return learner.buffer.logprobs_trajs, metrics


def fill_buffer(learner: Any, rows: Mapping[str, np.ndarray]) -> None:
    """Their rollout, with observations, rewards and ends of ours."""
    import torch  # pyright: ignore[reportMissingImports]

    model, buffer = learner.model, learner.buffer
    steps, number = rows["reward"].shape

    def shown(t: int) -> Any:
        return rows["observation"][t][:, None]

    buffer.reset()
    for t in range(steps):
        cond = {"state": torch.tensor(shown(t))}
        with torch.no_grad():
            value = model.critic(cond).numpy().flatten()
        drawn = model.get_actions(
            cond,
            eval_mode=False,
            save_chains=True,
            normalize_denoising_horizon=True,
            normalize_act_space_dimension=True,
        )
        _, chain, log_prob = (x.numpy() for x in drawn)
        ends = (rows["terminated"][t], np.zeros(number, bool))
        buffer.add(t, shown(t), chain, rows["reward"][t], *ends, value, log_prob)
    buffer.update({"state": shown(steps)}, model.critic)


@functools.partial(jax.jit, static_argnames="epochs")
def our_iteration(
    state: reinflow.State, rows: Mapping[str, Any], step: Any, config: reinflow.Config, epochs: int
) -> tuple[reinflow.State, Any, dict[str, Any]]:
    """Our State after an update, our log-probabilities, and metrics."""
    batch = our_rollout(state, rows, config)
    keys = jax.random.key_data(jax.random.split(jax.random.key(0), epochs))

    def permutation(key: Any, size: int) -> Any:
        del size
        return rows["orders"][(keys == jax.random.key_data(key)).all(axis=1).argmax()]

    with mock.patch.object(rollouts, "permutation", permutation):
        state, metrics = reinflow.update(state, batch, jax.random.key(0), step, config)
    return state, batch.extras["log_prob"], metrics


def our_rollout(
    state: reinflow.State, rows: Mapping[str, Any], config: reinflow.Config
) -> Transition:
    """What we store [T, E, ...] of the rows."""
    noise = jnp.clip(rows["noise"], -config.noise_clip, config.noise_clip)
    observation = rows["observation"][:-1]
    moments = reinflow.transition(state.actor.parameters, state, observation, config)
    chain, mean, std = chains.of_flow(moments, rows["start"], jnp.moveaxis(noise, 1, 0))
    log_prob, _ = chains.likelihood(chain, mean, std)
    return Transition(
        observation=observation,
        action=chain[..., -1, :],
        reward=rows["reward"],
        terminated=rows["terminated"],
        truncated=jnp.zeros(rows["reward"].shape, bool),
        next_observation=rows["observation"][1:],
        extras={"chain": chain, "log_prob": log_prob},
    )


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences of losses, and of parameters after all updates."""
    config = config_of(changes)
    learner = their_learner(peer, config)
    state = exact(reinflow.init(jax.random.key(0), SPEC, config))
    first = of_peer(learner.model)
    state = with_parameters(state, first)
    differences = dict.fromkeys(("log p", *LOSSES), 0.0)
    for i in range(updates):
        rows = rows_of(i, config)
        log_prob, theirs = their_iteration(learner, rows, i)
        state, mine, metrics = our_iteration(
            state, {name: jnp.asarray(x) for name, x in rows.items()}, i, config, config.num_epochs
        )
        gaps = {name: relative(float(metrics[name]), theirs[name]) for name in LOSSES}
        gaps["log p"] = float(np.abs(mine - log_prob).max())
        differences = {name: max(x, gaps[name]) for name, x in differences.items()}
    last, ours = of_peer(learner.model), of_ours(state)
    for name in first:
        differences[name] = distance(first[name], ours[name], last[name])
    logvar = learner.model.actor_ft.explore_noise_net.logvar_max
    differences["bound"] = relative(float(state.bound), float(np.exp(0.5 * logvar.numpy())))
    return differences


def times(peer: Path) -> dict[str, Any]:
    """See `shared.beside`."""
    config = config_of(FULL)
    learner = their_learner(peer, config, "float32")
    learner.itr, learner.initial_ratio_error_threshold = 0, np.inf
    rows = shared.in_float32(rows_of(0, config))
    fill_buffer(learner, rows)
    state = jax.jit(reinflow.init, static_argnums=1)(jax.random.key(0), SPEC, config)
    batch = our_rollout(state, jax.tree.map(jnp.asarray, rows), config)
    with contextlib.redirect_stdout(None):
        return shared.beside(learner.agent_update, reinflow.update, state, batch, config, 512)


def main() -> None:
    """Compare, and print and write by how much both differ."""
    options = shared.timed_parser(__doc__).parse_args()
    shared.report_or_time(options, CASES, compared, times, options.peer)


if __name__ == "__main__":
    main()
