"""Generative policies.

Diffusion's steps t = 0 .. T-1 go to more noise [1]. Over [0, 1] `interpolated` and `euler` go from
noise to data [2], `average_velocity` back [3]. Adjoint matching [4] has K steps of d = 1 / K, from
t_i = i d, i = 0 .. K-1.

[1] Ho et al., DDPM, arXiv:2006.11239
[2] Lipman et al., Flow Matching, arXiv:2210.02747
[3] Geng et al., Mean Flows, arXiv:2505.13447
[4] Domingo-Enrich et al., Adjoint Matching, arXiv:2409.08861
[5] Tancik et al., Fourier Features, arXiv:2006.10739
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from rljax import networks
from rljax.agent import Array, EnvSpec, Number, config
from rljax.networks import encoders
from rljax.networks.blocks.residual import ResidualMLP
from rljax.networks.layers import Module, Norm
from rljax.requirements import AtLeast, Between, NonNegative, Positive, Share, Widths

Noising = Literal["vp", "linear", "cosine"]
Sampling = Literal["posterior", "wide", "free", "clean"]
Embedding = Annotated[int, AtLeast(4)]
StepNoise = Annotated[float, Between(1e-4, 1e4)]


@config
class WithFlowNetworks:
    """Settings of a flow's networks and of those beside it, as FQL's authors have them: a base of
    an agent's Config.
    """

    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (512, 512, 512, 512)  # of all networks; arXiv:2502.02538
    activation: networks.Activation = "gelu_tanh"  # of hidden layers; arXiv:2502.02538
    layer_norm: bool = True  # of critics and V, after activation; arXiv:2502.02538
    initialisation: networks.Initialisation = "glorot_uniform"  # arXiv:2502.02538

    def create_field(
        self, spec: EnvSpec, key: Array, features: int | None = None, times: int = 1
    ) -> networks.Network:
        """A fresh `Field` with as many `features` as actions have numbers, if none are said."""
        style = networks.style_of(self) | {"hidden": self.hidden}
        features = spec.action_size if features is None else features
        encoding = encoders.EncoderSettings.of(self)
        return create_field(spec, encoding, key, features, times=times, **style)

    def create_critics(self, spec: EnvSpec, key: Array) -> networks.Network:
        """Fresh critics: observations [O...] and actions [A] -> [C]."""
        settings: Any = self
        sizes = (settings.num_critics, settings.critic_widths)
        net = networks.Ensemble(*sizes, layer_norm=self.norm, **networks.style_of(self))
        action = jnp.zeros(spec.action_shape)
        return encoders.create(spec, encoders.EncoderSettings.of(self), net, key, action)

    @property
    def norm(self) -> Norm:
        """Where critics and V have a layer normalisation."""
        return "last" if self.layer_norm else False


@config
class WithStepNoise:
    """Settings of noise in a flow's steps, whose std sigma is learnt between bounds: a base of an
    agent's Config.
    """

    noise_min: StepNoise = 0.1  # least sigma; arXiv:2505.22094: 0.08 or 0.1
    noise_max: StepNoise = 0.24  # largest sigma at first; arXiv:2505.22094: 0.16 or 0.24
    noise_hold: NonNegative = 0.35  # share of the run at noise_max; arXiv:2505.22094
    noise_steps: Positive = 1.0  # share of the run until that bound is at its end; arXiv:2505.22094
    noise_left: Share = 0.7  # share of noise_max - noise_min at that end; arXiv:2505.22094
    noise_clip: Positive = 3.0  # limit of the steps' normal numbers; arXiv:2505.22094

    def noise_bound(self, steps: Number) -> Array:
        """The largest sigma [] after environment `steps`: constant, then half a cosine."""
        duration = jnp.maximum(self.noise_steps - self.noise_hold, 1.0)
        passed = jnp.maximum(steps - self.noise_hold, 0.0)
        falling = (1.0 - self.noise_left) * (self.noise_max - self.noise_min)
        left = networks.cosine_rate(falling, jnp.asarray(passed), duration)
        return jnp.asarray(self.noise_max - falling + left, jnp.float32)


def sinusoidal(time: Array, size: int) -> Array:
    """Sines and cosines [..., size] of times [...] at frequencies 1 to 1e-4; arXiv:1706.03762."""
    frequencies = jnp.exp(-np.log(10_000.0) * jnp.arange(size // 2) / (size // 2 - 1))
    angle = time[..., None] * frequencies
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


class Field(Module):
    """An MLP, or residual blocks, over noisy actions, observations and times.

    A time enters as a number, or as an MLP of `embedding` > 0 waves: of its `sinusoidal`, or
    with `time_widths` of waves whose frequencies are learnt [5].
    """

    hidden: tuple[int, ...]
    features: int
    activation: networks.Activation = "relu"
    initialisation: networks.Initialisation = "torch"
    layer_norm: bool | Literal["last"] = False
    precision: networks.Precision = "float32"
    embedding: int = 0
    time_widths: tuple[int, ...] | None = None  # of that MLP's layers, the last one too
    encoder: nn.Module | None = None  # of observations that are no vectors
    residual: bool = False  # IDQL's blocks of the width H, one for each of `hidden`

    @nn.compact
    def __call__(
        self,
        action: Array,
        observation: Any,
        *times: Array,
        dropout: networks.Dropout | None = None,
    ) -> Array:
        """Map actions [..., A], observations [..., O...] and times [...] to [..., features];
        `dropout` is that of the body.
        """
        if self.encoder is not None:
            observation = self.encoder(observation)
        style = (self.activation, self.initialisation, 1.0, self.layer_norm, self.precision)
        inputs = []
        for i, time in enumerate(times):
            if self.embedding:
                *hidden, size = self.time_widths or (2 * self.embedding, self.embedding)
                embed = networks.MLP(tuple(hidden), size, *style, name=f"time_{i}")
                inputs.append(embed(self._waves(time, f"frequencies_{i}")))
            else:
                inputs.append(time[..., None])
        if self.residual:
            body = ResidualMLP(self.hidden, self.features, *style[:2], name="body")
        else:
            body = networks.MLP(self.hidden, self.features, *style, name="body")
        return body(action, *inputs, observation, dropout=dropout)

    def _waves(self, time: Array, name: str) -> Array:
        if self.time_widths is None:
            return sinusoidal(time, self.embedding)
        normal = nn.initializers.normal(0.2)
        turns = time[..., None] * self.param(name, normal, (self.embedding // 2,))
        angle = 2.0 * jnp.pi * turns
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)


def create_field(
    spec: EnvSpec,
    settings: encoders.EncoderSettings,
    key: Array,
    features: int,
    *,
    times: int = 1,
    **style: Any,
) -> networks.Network:
    """A fresh `Field` for actions, observations and a number of `times`."""
    encoder = encoders.encoder_or_none(spec, settings)
    field = Field(features=features, encoder=encoder, **style)
    action, zeros = jnp.zeros(spec.action_shape), jnp.zeros(times)
    return networks.create(field, key, action, spec.example(), *zeros)


class NoiseSchedule(NamedTuple):
    """The share of an action that remains after each of T steps of noise."""

    alpha: Array  # [T] alpha_t: the share of the variance that step t keeps
    signal: Array  # [T] abar_t, their product


def schedule(name: Noising, steps: int) -> NoiseSchedule:
    """The schedule called `name`, in `steps` steps.

    - vp: alpha_t = exp(-b_min / T - (b_max - b_min) (2t - 1) / (2 T^2)) for t = 1..T, with b from
      0.1 to 10 (Diffusion-QL; Song et al., arXiv:2011.13456);
    - linear: 1 - alpha_t evenly spaced from 1e-4 to 2e-2 (DDPM), for hundreds of steps;
    - cosine: abar_t = f(t / T) / f(0) with f(x) = cos((x + 0.008) / 1.008 pi / 2)^2, and alpha_t at
      least 1e-3 (Nichol and Dhariwal, arXiv:2102.09672).
    """
    t = np.arange(1, steps + 1)
    if name == "vp":
        alpha = np.exp(-0.1 / steps - 0.5 * (10.0 - 0.1) * (2 * t - 1) / steps**2)
    elif name == "cosine":
        left = np.cos((np.arange(steps + 1) / steps + 0.008) / 1.008 * np.pi / 2.0) ** 2
        alpha = np.maximum(left[1:] / left[:-1], 1e-3)
    else:
        alpha = 1.0 - np.linspace(1e-4, 2e-2, steps)
    return NoiseSchedule(*[jnp.asarray(x, jnp.float32) for x in (alpha, np.cumprod(alpha))])


def noised(schedule: NoiseSchedule, action: Array, step: Array, noise: Array) -> Array:
    """sqrt(abar) a + sqrt(1 - abar) e: actions [..., A] after steps [...] of noise [..., A]."""
    signal = schedule.signal[step][..., None]
    return jnp.sqrt(signal) * action + jnp.sqrt(1.0 - signal) * noise


def estimated(schedule: NoiseSchedule, noisy: Array, step: Array, noise: Array) -> Array:
    """The inverse of `noised`: clean actions [..., A]."""
    signal = schedule.signal[step][..., None]
    return (noisy - jnp.sqrt(1.0 - signal) * noise) / jnp.sqrt(signal)


def denoised(schedule: NoiseSchedule, noisy: Array, step: Array, noise: Array) -> Array:
    """The same, clipped to [-1, 1]."""
    return jnp.clip(estimated(schedule, noisy, step, noise), -1.0, 1.0)


class Posterior(NamedTuple):
    """q(a_{t-1} | a_t, a_0) of each step, with the mean `clean` a_0 + `noisy` a_t [1, eq. 7]."""

    clean: Array  # [T]
    noisy: Array  # [T]
    std: Array  # [T]; the first, of the step to a_0, is 0


def posterior(schedule: NoiseSchedule, is_wide: bool = False) -> Posterior:
    """The posterior of each step; a wide one has the std of q(a_t | a_{t-1})."""
    alpha, signal = schedule
    before = jnp.concatenate([jnp.ones(1), signal[:-1]])  # abar_{t-1}
    share = before < 1.0 if is_wide else (1.0 - before) / (1.0 - signal)
    return Posterior(
        clean=(1.0 - alpha) * jnp.sqrt(before) / (1.0 - signal),
        noisy=(1.0 - before) * jnp.sqrt(alpha) / (1.0 - signal),
        std=jnp.sqrt((1.0 - alpha) * share),
    )


def reverse(
    schedule: NoiseSchedule, denoiser: Callable[[Array, Array], Array]
) -> Callable[[Array, Array], tuple[Array, Array]]:
    """A function of noisy actions [..., A] and steps [...]: mean [..., A] and std [..., 1] of their
    `posterior` with `denoised` a_0.
    """
    weights = posterior(schedule)

    def moments(noisy: Array, step: Array) -> tuple[Array, Array]:
        clean = denoised(schedule, noisy, step, denoiser(noisy, step))
        share, rest, std = (x[step][..., None] for x in weights)
        return share * clean + rest * noisy, std

    return moments


def ancestral(
    schedule: NoiseSchedule,
    denoiser: Callable[[Array, Array], Array],
    key: Array,
    shape: tuple[int, ...],
    sampling: Sampling = "posterior",
) -> Array:
    """Actions of `shape` [..., A] from noise, by DDPM's reverse process [1, algorithm 2].

    `denoiser(noisy, step)` predicts the noise [..., A] at `step` [...]. The last step adds no
    noise. The others draw a_{t-1} from

    - posterior: q(a_{t-1} | a_t, a_0) with `denoised` a_0;
    - wide: the same mean, with the std of q(a_t | a_{t-1}) (DAC's code);
    - free: the same with an a_0 that is not clipped, but the draw is (IDQL's code);
    - clean: the estimate of a_0 as it is, with that std, clipped (the code of arXiv:2601.14234).
    """
    step_back = posterior(schedule, is_wide=sampling != "posterior")
    steps = schedule.alpha.size
    noise = jax.random.normal(key, (steps + 1, *shape))

    def reverse(action: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        t, noise = inputs
        step = jnp.full(shape[:-1], t)
        clean = estimated(schedule, action, step, denoiser(action, step))
        if sampling in ("posterior", "wide"):
            clean = jnp.clip(clean, -1.0, 1.0)
        mean = clean
        if sampling != "clean":
            mean = step_back.clean[t] * clean + step_back.noisy[t] * action
        following = mean + step_back.std[t] * noise
        if sampling in ("free", "clean"):
            following = jnp.clip(following, -1.0, 1.0)
        return following, None

    order = jnp.arange(steps - 1, -1, -1)
    return jnp.clip(jax.lax.scan(reverse, noise[0], (order, noise[1:]))[0], -1.0, 1.0)


def interpolated(noise: Array, action: Array, time: Array) -> Array:
    """Points at times [...] on lines from noise [..., A] at 0 to actions at 1."""
    time = time[..., None]
    return (1.0 - time) * noise + time * action


def flow_matching_loss(
    velocity: Callable[[Array, Array], Array],
    action: Array,
    key: Array,
    valid: Array | None = None,
) -> Array:
    """Squared error [] of `velocity(action, time)` to lines from noise to actions [B, A] [2].

    The error of numbers is 0 where they are not `valid` [B, A].
    """
    key_noise, key_time = jax.random.split(key)
    noise = jax.random.normal(key_noise, action.shape)
    time = jax.random.uniform(key_time, action.shape[:-1])
    error = jnp.square(velocity(interpolated(noise, action, time), time) - (action - noise))
    return (error if valid is None else error * valid).mean()


def euler(velocity: Callable[[Array, Array], Array], noise: Array, steps: int) -> Array:
    """Actions [..., A] in [-1, 1] from noise along `velocity(action, time)`, in equal steps."""

    def move(i: Array, action: Array) -> Array:
        return action + velocity(action, jnp.full(noise.shape[:-1], i / steps)) / steps

    return jnp.clip(jax.lax.fori_loop(0, steps, move, noise), -1.0, 1.0)


def average_velocity(
    field: Callable[[Array, Array, Array], Array],
    noisy: Array,
    start: Array,
    time: Array,
    velocity: Array,
) -> tuple[Array, Array]:
    """u(a_t, r, t) = `field(a, r, t)` and its target by MeanFlow's identity, without gradient,
    [..., A].

    For a flow with `velocity` v [3, eq. 6]:

      u = v - (t - r) du/dt,   du/dt = v . grad_a u + d_t u,
    """
    direction = (velocity, jnp.ones_like(time))
    u, derivative = jax.jvp(lambda a, t: field(a, start, t), (noisy, time), direction)
    return u, jax.lax.stop_gradient(velocity - (time - start)[..., None] * derivative)


def logit_normal(key: Array, shape: tuple[int, ...]) -> Array:
    """MeanFlow's times in (0, 1): sigmoids of Gaussian noise."""
    return jax.nn.sigmoid(-0.4 + jax.random.normal(key, shape))


def memoryless_std(steps: int) -> Array:
    """sigma_i = sqrt(2 (1 - t_i + d) / (t_i + d)) [K] of [4]'s process in K `steps`."""
    after = jnp.arange(1, steps + 1) / steps
    return jnp.sqrt(2.0 * (1.0 - after + 2.0 / steps) / after)


def memoryless(
    velocity: Callable[[Array, Array], Array],
    base: Callable[[Array, Array], Array],
    noise: Array,
    key: Array,
    steps: int,
) -> tuple[Array, Array]:
    """The points x_i [K, ..., A] of [4]'s process from noise x_0 [..., A], and x_K [..., A].

      x_{i+1} = x_i + d (2 v(x_i, t_i) - x_i / (t_i + d)) + sqrt(d) sigma_i z_i

    The last step is Euler's, along `base`.
    """
    size, std = 1.0 / steps, memoryless_std(steps)
    times = size * jnp.arange(steps)

    def move(x: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        time, std, key = inputs
        drift = 2.0 * velocity(x, jnp.full(x.shape[:-1], time)) - x / (time + size)
        moved = x + size * drift + jnp.sqrt(size) * std * jax.random.normal(key, x.shape)
        return moved, x

    inputs = (times[:-1], std[:-1], jax.random.split(key, steps - 1))
    last, points = jax.lax.scan(move, noise, inputs)
    end = last + size * base(last, jnp.full(last.shape[:-1], times[-1]))
    return jnp.concatenate([points, last[None]]), end


def lean_adjoints(base: Callable[[Array, Array], Array], points: Array, slope: Array) -> Array:
    """g_i [K, ..., A] of points x_i [K, ..., A], from the `slope` g_K [..., A] at the end [4].

    g_i = g_{i+1} + d g_{i+1}^T grad (2 f(x_i, t_i + d) - x_i / (t_i + d))
    """
    steps = len(points)

    def back(slope: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        after, x = inputs
        time = jnp.full(x.shape[:-1], after)
        pull = jax.vjp(lambda x: 2.0 * base(x, time) - x / after, x)[1]
        slope += pull(slope)[0] / steps
        return slope, slope

    after = jnp.arange(1, steps + 1) / steps
    return jax.lax.scan(back, slope, (after, points), reverse=True)[1]


def adjoint_matching_loss(
    velocity: Callable[[Array, Array], Array],
    old: Callable[[Array, Array], Array],
    base: Callable[[Array, Array], Array],
    gain: Callable[[Array], Array],
    noise: Array,
    key: Array,
    steps: int,
) -> Array:
    """The loss [] of `velocity` v that tunes a flow `base` f towards a larger `gain` [] of actions.

      mean sum_i |2 (v - f)(x_i, t_i) / sigma_i + sigma_i g_i|^2,   g_K = -grad gain(x_K)

    The points x_i are those of `old` from noise x_0 [B, A]; [4, eq. 37 and 38].
    """
    points, end = memoryless(old, base, noise, key, steps)
    slopes = lean_adjoints(base, points, -jax.grad(gain)(end))

    def error(x: Array, time: Array, std: Array, slope: Array) -> Array:
        time = jnp.full(x.shape[:-1], time)
        change = velocity(x, time) - base(x, time)
        return jnp.square(2.0 * change / std + std * slope).sum(axis=-1)

    times = jnp.arange(steps) / steps
    return jax.vmap(error)(points, times, memoryless_std(steps), slopes).sum(axis=0).mean()


def repeated(spec: EnvSpec, observation: Any, number: int) -> Any:
    """Observations [..., O...] as [..., number, O...], for `number` candidates each."""
    axis = len(spec.leading(observation))
    return jax.tree.map(
        lambda x: jnp.repeat(jnp.expand_dims(x, axis), number, axis=axis), observation
    )


def action_noise(spec: EnvSpec, observation: Any, key: Array) -> Array:
    """Standard normal noise [..., A] for observations [..., O...]."""
    return jax.random.normal(key, (*spec.leading(observation), spec.action_size))


def candidate(candidates: Array, index: Array) -> Array:
    """The candidates [..., A] at `index` [...] from [..., N, A]."""
    return jnp.take_along_axis(candidates, index[..., None, None], axis=-2)[..., 0, :]
