"""Mixed: batches with rows of a replay and of a data set."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rljax.agent import Array, Transition, choose
from rljax.buffers.dataset import ALIAS, AliasDraws, aliased, drawn_rows, transitions
from rljax.buffers.experience import declaration
from rljax.buffers.replay import Replay, uniform, with_columns
from rljax.buffers.rows import AS_STORED, RewardMap
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.buffers.windows import REWARDS


@declaration
class Mixed(Replay):
    """Batches with a share of rows from the data set.

    The data set's rows come first; the default share is RLPD's (Ball et al., arXiv:2302.02948).
    With "pooled" every transition of both sources is equally likely. With (A, B, N) the share goes
    linearly from A to B over the first N new transitions. While a learner has no new row to draw,
    its batches are of the data set alone.
    """

    offline_share: Any = 0.5  # in [0, 1), or "pooled", or (A, B, N); it shapes the program
    reward_map: RewardMap = AS_STORED  # of new rewards; the data set's are mapped already

    kind: ClassVar[str] = "mixed"

    @classmethod
    def of(cls, replay: Replay, offline_share: Any, reward_map: RewardMap = AS_STORED) -> Mixed:
        """Mix an agent's replay with a data set.

        Raises `ValueError` for unfit draws and shares.
        """
        if not replay.draw.from_data:
            flag = replay.draw.flag
            source = f"--config.{flag}" if flag else "this agent"
            raise ValueError(
                f"{source} draws from a replay of new experience alone, not with --data."
            )
        if offline_share == "pooled" and replay.draw.relabels:
            raise ValueError(
                "--offline-share pooled draws all rows alike, and this agent draws rows with goals "
                "of the same source: give a share, such as 0.5."
            )
        if isinstance(offline_share, tuple) and offline_share[2] > replay.replay_size:
            raise ValueError(
                f"--offline-share changes over {offline_share[2]:,} new transitions, more than "
                f"--config.replay-size {replay.replay_size:,} keeps: raise it, or let the "
                "share change sooner."
            )
        fields = {field.name: getattr(replay, field.name) for field in dataclasses.fields(replay)}
        return cls(**fields, offline_share=offline_share, reward_map=reward_map)

    @property
    def steps_before_updates(self) -> int:
        return max(self.warmup_steps, 1)

    def sample(self, buffer: ReplayBuffer, data: Transition | None, keys: Array) -> Transition:
        """The batches, with the `extras` that both sources have."""
        assert data is not None
        kinds = {str: self._pooled, tuple: self._scheduled}
        sample = kinds.get(type(self.offline_share), self._shared)
        return self.augmented(buffer, self.draw.summed(sample(buffer, data, keys)), keys)

    def _shared(self, buffer: ReplayBuffer, data: Transition, keys: Array) -> Transition:
        offline = round(self.offline_share * self.batch_size)
        spare = self.batch_size if self.draw.may_be_empty else offline
        old, new = self._both(buffer, data, keys, spare, self.batch_size - offline)
        if self.draw.may_be_empty:
            rest = jax.tree.map(lambda x: x[:, :, offline:], old)
            old = jax.tree.map(lambda x: x[:, :, :offline], old)
            new = choose(self._has_rows(buffer), new, rest)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=2), old, new)

    def _has_rows(self, buffer: ReplayBuffer) -> Array:
        number = lambda ring: self.draw.drawable(ring, self.num_envs).number  # noqa: E731
        return jax.vmap(number, in_axes=(buffer.axes,))(buffer) > 0

    def _scheduled(self, buffer: ReplayBuffer, data: Transition, keys: Array) -> Transition:
        """Whole batches of both are drawn, as only the program knows the share."""
        begin, end, steps = self.offline_share
        share = begin + (end - begin) * jnp.minimum(buffer.size / steps, 1.0)  # [], of all learners
        is_old = jnp.arange(self.batch_size) < jnp.round(share * self.batch_size)
        if self.draw.may_be_empty:
            is_old |= ~self._has_rows(buffer)[:, None, None]
        old, new = self._both(buffer, data, keys, self.batch_size, self.batch_size)
        return choose(jnp.broadcast_to(is_old, old.reward.shape), old, new)

    def _both(
        self, buffer: ReplayBuffer, data: Transition, keys: Array, offline: int, online: int
    ) -> tuple[Transition, Transition]:
        """`offline` rows of the data set and `online` new ones, [P, U, ...] each."""
        key_offline, key_online = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        sized = [dataclasses.replace(self, batch_size=size) for size in (offline, online)]
        draw = self.draw.beside_data
        if draw is None:
            old = drawn_rows(data, key_offline, offline, self, self.summed_steps)
        else:
            old = draw.take(data, draw.random(key_offline, data.reward.shape[0], sized[0]))
        if self.draw.relabels:
            new = self.draw(buffer, key_online, sized[1])
        else:
            new = uniform(buffer, key_online, self, online, self.reward_map)
        return _alike(old, self._as_data(new))

    def _pooled(self, buffer: ReplayBuffer, data: Transition, keys: Array) -> Transition:
        number, weighted = data.reward.shape[0], ALIAS in data.extras

        def draw(ring: ReplayBuffer, key: Array) -> Transition:
            key, key_bits = jax.random.split(key) if weighted else (key, key)
            drawable, row = self.draw.drawable(ring, self.num_envs)
            shape = (self.num_updates, self.batch_size)
            rows = jax.random.randint(key, shape, 0, number + drawable)
            is_old = rows < number
            old_rows = jnp.minimum(rows, number - 1)
            if weighted:
                bits = jax.random.bits(key_bits, shape)
                old_rows = aliased(data, AliasDraws(old_rows, bits))
            old = transitions(data, old_rows, self, self.summed_steps)
            new_rows = row(jnp.maximum(rows - number, 0))
            new = with_columns(ring, new_rows, self, self.reward_map)
            return choose(is_old, *_alike(old, self._as_data(new)))

        return jax.vmap(draw, in_axes=(buffer.axes, 0))(buffer, keys)

    def _as_data(self, new: Transition) -> Transition:
        extras = dict(new.extras)
        if REWARDS in extras:
            extras[REWARDS] = self.reward_map(extras[REWARDS])
        return new.replace(reward=self.reward_map(new.reward), extras=extras)


def _alike(old: Transition, new: Transition) -> tuple[Transition, Transition]:
    names = [name for name in old.extras if name in new.extras]

    def reduced(part: Transition) -> Transition:
        return part.replace(extras={name: part.extras[name] for name in names})

    return reduced(old), reduced(new)
