"""How batches are drawn from a replay: uniformly, with returns of several steps, with goals replaced in hindsight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from rljax.agent import Array, Transition
from rljax.buffers.experience import RingRows, declaration

if TYPE_CHECKING:
    from rljax.buffers.replay import Replay, ReplayBuffer


@declaration
class Draw:
    """How batches are drawn from a replay."""

    needs_time: ClassVar[bool] = False  # rows need `extras["time"]`, the number of their step in the episode
    from_data: ClassVar[bool] = False  # batches can be mixed with rows of a data set
    has_columns: ClassVar[bool] = False  # batches carry the columns that the agent asks for
    flag: ClassVar[str] = ""  # name of the setting that asks for this draw

    def check(self, experience: Replay) -> None:
        """Raise `ValueError` where the replay is too small for this draw."""

    def fewest(self, experience: Replay) -> int:
        """Environment steps of each learner before anything can be drawn."""
        del experience
        return 1

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        """Batches [P, U, B, ...]; `keys` are [P]."""
        raise NotImplementedError


@declaration
class Uniform(Draw):
    """Uniform rows with replacement."""

    from_data: ClassVar[bool] = True
    has_columns: ClassVar[bool] = True

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        """Batches [P, U, B, ...]; `keys` are [P]."""
        return uniform(buffer, keys, experience, experience.batch_size)


def uniform(buffer: ReplayBuffer, keys: Array, experience: Replay, size: int) -> Transition:
    """Batches of `size` rows, drawn uniformly, with the columns that the agent asks for."""

    def draw(ring: ReplayBuffer, key: Array) -> Transition:
        return with_columns(ring, ring.random_rows(key, (experience.num_updates, size)), experience)

    return jax.vmap(draw, in_axes=(buffer.axes, 0))(buffer, keys)


def with_columns(ring: ReplayBuffer, rows: Array, experience: Replay) -> Transition:
    """The transitions in `rows` [...] of one learner's ring, with the columns that the agent asks for."""
    batch = ring.transitions(rows)
    if not experience.columns:
        return batch
    later, num_envs = later_rows(ring, rows, experience.num_envs), experience.num_envs
    at = RingRows(rows, later, num_envs, ring.capacity, getattr(experience, "reward_affine", (1.0, 0.0)))
    extras = dict(batch.extras)
    for column in experience.columns:
        extras |= column.of_replay(ring.data, at)
    return batch.replace(extras=extras)


def later_rows(buffer: ReplayBuffer, rows: Array, num_envs: int) -> Array:
    """For each of `rows` of a ring: the number of newer rows of the same environment, with `num_envs` environments."""
    return (buffer.position - 1 - rows) % buffer.capacity // num_envs


@declaration
class NStep(Draw):
    """Uniform rows, with the rewards of up to `steps` steps summed.

    The sum covers k rows of one episode and begins with the drawn row. k is `steps`, or less where the episode ends or
    where the ring's newest row is reached. `reward` is the sum of discount^i r_i, `extras["discount"]` is discount^k,
    and `next_observation`, `terminated` and `truncated` are those of the last of these rows.
    """

    steps: int
    discount: float

    flag: ClassVar[str] = "n-step"

    def check(self, experience: Replay) -> None:
        """Raise `ValueError` where the replay holds fewer steps of an environment than are summed."""
        held = experience.replay_size // experience.num_envs
        if self.steps > held:
            raise ValueError(
                f"--config.n-step is {self.steps:,}, and --config.replay-size {experience.replay_size:,} holds "
                f"{held:,} steps of each environment. Lower the one or raise the other."
            )

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        """Batches [P, U, B, ...]; `keys` are [P]."""

        def draw(ring: ReplayBuffer, key: Array, discount: Array) -> Transition:
            rows = ring.random_rows(key, (experience.num_updates, experience.batch_size))
            return n_step_batch(ring, rows, experience.num_envs, self.steps, discount)

        return jax.vmap(draw, in_axes=(buffer.axes, 0, 0))(buffer, keys, self.discount)  # type: ignore[arg-type]


def n_step_batch(ring: ReplayBuffer, rows: Array, num_envs: int, number: int, discount: Array | float) -> Transition:
    """The transitions over up to `number` steps from `rows` [...] on, of one learner's ring; see `NStep`."""
    data, capacity, steps = ring.data, ring.capacity, jnp.arange(number)
    following = (rows[..., None] + num_envs * steps) % capacity  # [..., n]
    ended = data.terminated[following] | data.truncated[following]
    goes_on = ~ended & (steps < later_rows(ring, rows, num_envs)[..., None])
    counts = jnp.cumprod(goes_on, axis=-1, dtype=jnp.int32)[..., :-1]
    counts = jnp.concatenate([jnp.ones_like(rows[..., None]), counts], axis=-1)
    length = counts.sum(axis=-1)
    last = (rows + num_envs * (length - 1)) % capacity
    return Transition(
        observation=ring.observations(rows),
        action=data.action[rows],
        reward=jnp.where(counts == 1, discount**steps * data.reward[following], 0.0).sum(axis=-1),
        terminated=data.terminated[last],
        truncated=data.truncated[last],
        next_observation=ring.successors(last),
        extras={name: x[rows] for name, x in data.extras.items()} | {"discount": discount**length},
    )


@declaration
class Hindsight(Draw):
    """Uniform rows, with the goals of a `share` of the rows replaced.

    Half of the new goals are goals that the row's own episode reached k steps later, with P(k) ~ discount^k among its
    later steps in the ring. The other half are goals that another environment reached in any row (the same environment,
    where there is only one). The environment relabels observations and rewards. `terminated` and `truncated` do not
    change.
    """

    share: float
    discount: float
    environment: Any = None  # `rljax.envs.goals.GoalConditioned`; the training's plan fills it in

    needs_time: ClassVar[bool] = True
    flag: ClassVar[str] = "hindsight"

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        """Batches [P, U, B, ...]; `keys` are [P]."""
        number, capacity = experience.num_envs, buffer.capacity

        def draw(ring: ReplayBuffer, key: Array, discount: Array, share: Array) -> Transition:
            key_rows, key_kind, key_future, key_other, key_slot = jax.random.split(key, 5)
            shape = (experience.num_updates, experience.batch_size)
            rows, time = ring.random_rows(key_rows, shape), ring.data.extras["time"]

            def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
                low, high = bounds
                middle = (low + high + 1) // 2
                same = (
                    time[(rows + number * middle) % capacity] == time[rows] + middle
                )  # no step later, no other episode
                return jnp.where(same, middle, low), jnp.where(same, high, middle - 1)

            bounds = (jnp.zeros_like(rows), later_rows(buffer, rows, number))
            left, _ = jax.lax.fori_loop(0, (capacity // number).bit_length(), halve, bounds)
            decay = jnp.log(jnp.clip(discount, 1e-6, 1.0 - 1e-6))
            uniform = jax.random.uniform(key_future, shape)
            ahead = jnp.floor(jnp.log1p(uniform * jnp.expm1(decay * (left + 1))) / decay).astype(jnp.int32)
            future = (rows + number * jnp.minimum(ahead, left)) % capacity
            step = jax.random.randint(key_slot, shape, 0, ring.drawable // number)
            environment = (rows + jax.random.randint(key_other, shape, 1, max(number, 2))) % number
            other = ring.row_of(step, environment, number)

            kind = jax.random.uniform(key_kind, shape)
            batch = ring.transitions(rows).replace(extras={})
            replaced = kind < share
            chosen = jnp.where(kind < 0.5 * share, future, other)
            goal = self.environment.achieved(ring.successors(chosen))
            goal = jnp.where(replaced[..., None], goal, self.environment.desired(batch.observation))
            reward = self.environment.goal_reward(self.environment.achieved(batch.next_observation), goal)
            return batch.replace(
                observation=self.environment.relabelled(batch.observation, goal),
                next_observation=self.environment.relabelled(batch.next_observation, goal),
                reward=jnp.where(replaced, reward, batch.reward),
            )

        return jax.vmap(draw, in_axes=(buffer.axes, 0, 0, 0))(buffer, keys, self.discount, self.share)  # type: ignore[arg-type]
