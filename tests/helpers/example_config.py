"""A Config with one field of each kind."""

from __future__ import annotations

from typing import Literal

from rljax import agent


@agent.config
class Config:
    """One field of each kind."""

    learning_rate: float = 1e-3
    entropy: float | None = None
    batch_size: int = 4
    hidden: tuple[int, ...] = (8, 8)
    activation: Literal["relu", "tanh"] = "relu"
    layer_norm: bool = False
    title: str = "none"
    grid: tuple[int, int] | None = None
