"""What agents choose of heads, and the checks of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np

from rljax.agent import Array, Number, config, same_fields
from rljax.networks.heads.kinds import (
    CLIPPED,
    OUTER,
    Binned,
    Categorical,
    Head,
    HLGauss,
    Quantile,
    Scalar,
    TwoHot,
)
from rljax.requirements import AtLeast, Positive, Real, require_at_least, require_range

WARNED = 0.25  # the share of clipped targets above which a run warns

Kind = Literal["squared", "two_hot", "hl_gauss"]  # of critics whose targets are numbers


class HeadSettings(NamedTuple):
    """What agents choose for such critics; see `WithHead`."""

    value_head: Kind = "squared"
    bins: int = 101
    v_min: Number | None = None
    v_max: Number | None = None

    @classmethod
    def of(cls, config: Any) -> HeadSettings:
        """Those of a Config."""
        return cls(**same_fields(config, cls._fields))


@config
class WithHead:
    """Settings of how critics learn values: a base of an agent's Config."""

    value_head: Kind = "squared"  # by squared error, or by classes; arXiv:2403.03950
    bins: int = 101  # of two_hot and hl_gauss: classes of values; own choice
    v_min: float | None = None  # lower end of the bins; None: below the data's returns
    v_max: float | None = None  # upper end of the bins; None: above the data's returns


def check_bins(settings: HeadSettings) -> None:
    """Raise `ValueError` for bins that cannot work."""
    require_at_least(settings, bins=2 * OUTER + 3)
    ends = [name for name in ("v_min", "v_max") if getattr(settings, name) is not None]
    require_range(settings, **dict.fromkeys(ends, (None, None)))
    if len(ends) == 1:
        raise ValueError(
            "--config.v-min and --config.v-max go together: give both, or neither for those of "
            "the data."
        )
    if ends:
        _check_ends(settings.v_min, settings.v_max)


def _check_ends(low: Any, high: Any) -> None:
    if not np.all(np.asarray(low) < np.asarray(high)):
        raise ValueError(f"--config.v-min is {low}, it must be below --config.v-max {high}.")


def clipping(metrics: Mapping[str, Any]) -> str | None:
    """A warning where many targets of the metrics [P] of a run are clipped, else None."""
    shares = np.asarray(metrics.get(CLIPPED, np.nan))
    share = np.nanmean(shares) if np.isfinite(shares).any() else 0.0
    if share <= WARNED:
        return None
    return (
        f"{share:.0%} of the targets lie beyond the ends of the critic's support and are clipped "
        f"('{CLIPPED}'): set --config.v-min and --config.v-max to the smallest and the largest "
        "discounted return of this task."
    )


CriticKind = Literal["squared", "two_hot", "hl_gauss", "c51", "quantile"]
Combination = Literal["smallest", "mean", "own"]  # of several target critics


@config
class WithCriticHead:
    """Settings of what critics of replayed experience learn: a base of an agent's Config."""

    value_head: CriticKind = "squared"  # the mean return, or its distribution; networks/heads
    bins: Annotated[int, AtLeast(2)] = 101  # of two_hot, hl_gauss and c51; arXiv:2502.15280
    v_min: Real = -10.0  # lower end of the bins; arXiv:1707.06887
    v_max: Real = 10.0  # upper end of the bins; arXiv:1707.06887
    quantiles: Annotated[int, AtLeast(2)] = 25  # of quantile; arXiv:2005.04269
    kappa: Positive = 1.0  # error up to which the quantiles' loss is quadratic; arXiv:1710.10044
    target_value: Combination = "smallest"  # of target critics; mean: BRO, BRC; own: FastSAC


def of_critics(settings: WithCriticHead) -> Head:
    """The head of an agent's settings."""
    match settings.value_head:
        case "c51":
            return Categorical(settings.bins, settings.v_min, settings.v_max)
        case "quantile":
            return Quantile(settings.quantiles, settings.kappa)
    return of_numbers(settings)


def of_numbers(settings: Any) -> Scalar | TwoHot:
    """The head of a Config's `value_head`, `bins`, `v_min` and `v_max`; targets are numbers."""
    sizes = (settings.bins, settings.v_min, settings.v_max)
    match settings.value_head:
        case "two_hot":
            return TwoHot(*sizes)
        case "hl_gauss":
            return HLGauss(*sizes)
    return Scalar()


def check_critics(settings: Any) -> None:
    """Raise `ValueError` for a head that cannot work."""
    if settings.value_head == "hl_gauss":
        require_at_least(settings, bins=2 * OUTER + 3)
    if settings.value_head not in ("squared", "quantile"):
        _check_ends(settings.v_min, settings.v_max)


def combined(outputs: Array, head: Head, combination: Combination) -> Array:
    """What target critics' outputs [C, ..., K] are together: [..., K]; "own" leaves them apart."""
    match combination:
        case "smallest":
            return head.smallest(outputs)
        case "mean":
            return head.average(outputs)
    return outputs


def smallest_target(targets: Array, head: Head) -> Array:
    """Of several critics' targets [C, B (, K)] those [B (, K)] whose mean is smallest."""
    index = head.target_mean(targets).argmin(axis=0)
    return jax.vmap(lambda row, i: row[i], in_axes=(1, 0))(targets, index)


Name = Literal["none", "c51", "quantile"]


@config
class WithDistribution:
    """Settings of what critics learn of the return: a base of an agent's Config."""

    loss: Literal["huber", "squared"] = "squared"  # of the error of a mean; huber in DQN
    distribution: Name = "none"  # of returns: their mean, or arXiv:1707.06887, arXiv:1710.10044
    atoms: Annotated[int, AtLeast(2)] = 51  # of c51; arXiv:1707.06887
    v_min: Real = -10.0  # the lowest atom; arXiv:1707.06887
    v_max: Real = 10.0  # the highest atom; arXiv:1707.06887
    quantiles: Annotated[int, AtLeast(2)] = 200  # of quantile; arXiv:1710.10044
    kappa: Real = 1.0  # error up to which the quantiles' loss is quadratic; arXiv:1710.10044


def of_returns(settings: WithDistribution) -> Head:
    """The head of an agent's settings."""
    match settings.distribution:
        case "c51":
            return Categorical(settings.atoms, settings.v_min, settings.v_max)
        case "quantile":
            return Quantile(settings.quantiles, settings.kappa)
    return Scalar(settings.loss)


def check(head: Head, num_critics: int) -> None:
    """Raise `ValueError` for a head that cannot work; floats may be one per learner."""
    if isinstance(head, Scalar):
        return
    if num_critics > 1:
        raise ValueError(
            f"--config.num-critics is {num_critics}: a distribution of returns is that of one "
            "critic. Use --config.num-critics 1, or --config.distribution none."
        )
    if isinstance(head, Quantile) and not np.all(np.asarray(head.kappa) > 0):
        raise ValueError(f"--config.kappa is {head.kappa}, it must be above 0.")
    if isinstance(head, Binned):
        _check_ends(head.low, head.high)
