"""A summary of a dataset in numbers, and a figure of its episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rljax.agent import shown
from rljax.datasets.dataset import OfflineDataset

SUFFIXES = (".png", ".svg", ".pdf")
COLOUR = "#0072B2"  # Okabe and Ito's blue


def describe(dataset: OfflineDataset) -> dict[str, Any]:
    """A summary, which JSON can hold.

    Returns, lengths, scores and sums of signals are those of complete episodes.
    """
    returns, transitions = dataset.returns(), dataset.transitions
    described: dict[str, Any] = {
        "name": dataset.name,
        "env": dataset.env,
        "transitions": dataset.num,
        "observation_size": dataset.observation_size,
        "observation": shown(dataset.spec),
        "choices": list(dataset.choices),
        "action_size": dataset.action_size,
        "discrete": dataset.discrete,
        "max_episode_steps": dataset.max_episode_steps,
        "bytes": dataset.nbytes,
        "episodes": len(returns),
        "terminated": int(np.asarray(transitions.terminated).sum()),
        "truncated": int(np.asarray(transitions.truncated).sum()),
        "reference": dataset.reference and list(dataset.reference),
        "action_bounds": dataset.action_bounds and [x.tolist() for x in dataset.action_bounds],
        "reward": _summary(np.asarray(transitions.reward, np.float64)),
    }
    if len(returns):
        described["return"] = _summary(returns)
        described["length"] = _summary(dataset.lengths())
        if dataset.reference is not None:
            described["score"] = _summary(dataset.score(returns))
        sums = dataset.signal_sums()
        described["signals"] = {name: _summary(values) for name, values in sums.items()}
    return described | {"provenance": dataset.provenance}


def draw(dataset: OfflineDataset, path: Path) -> Path:
    """Draw histograms of returns and lengths of complete episodes to `path`, and return it.

    Raises `ValueError` for a suffix not in `SUFFIXES`, or without complete episodes.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"the file is '{path.name}', its suffix must be one of {', '.join(SUFFIXES)}."
        )
    returns, lengths = dataset.returns(), dataset.lengths()
    if not len(returns):
        raise ValueError(f"'{dataset.name}' has no complete episode: there is nothing to draw.")

    import matplotlib
    from matplotlib.figure import Figure

    # Without pyplot there is no global state. The salt makes SVG files of equal data
    # equal.
    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "rljax", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _histogram(left, returns, "Return of an episode (undiscounted)")
        limit = dataset.max_episode_steps
        _histogram(right, lengths, "Length of an episode (steps)", whole=True, limit=limit)
        if dataset.reference is not None:
            low, high = dataset.reference
            functions = dataset.score, lambda s: low + s / 100 * (high - low)
            scores = left.secondary_xaxis("top", functions=functions)
            scores.set_xlabel("Normalised score", fontsize=8, color="0.35")
            scores.tick_params(labelsize=8, colors="0.35")
        name = Path(dataset.name).name if Path(dataset.name).suffix else dataset.name
        figure.suptitle(
            f"{name}: {dataset.num:,} transitions, {len(returns):,} complete episodes",
            x=0.01,
            ha="left",
            fontsize=10,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
        figure.savefig(path, dpi=160, metadata=metadata)
    return path


def _histogram(
    panel: Any, values: np.ndarray, label: str, *, whole: bool = False, limit: int | None = None
) -> None:
    low, high = float(values.min()), float(values.max())
    bins: Any = min(50, max(10, int(np.sqrt(len(values)) * 2)))
    if low == high:
        margin = max(1.0, 0.1 * abs(low))
        bins = np.linspace(low - margin, high + margin, 12)
    elif whole:
        width = max(1, int(np.ceil((high - low + 1) / bins)))
        bins = np.arange(low - 0.5, high + width + 0.5, width)
    counts, *_ = panel.hist(values, bins=bins, color=COLOUR, alpha=0.85)
    mean = float(values.mean())
    panel.axvline(mean, ymax=0.8, color="#D55E00", linewidth=1.2, label=f"mean {mean:,.1f}")
    if limit is not None:
        panel.axvline(
            limit, ymax=0.8, color="0.35", linewidth=1, linestyle=":", label=f"time limit {limit:,}"
        )
    panel.set_xlabel(label)
    panel.set_ylabel("Episodes")
    panel.set_ylim(0, 1.25 * counts.max())
    panel.ticklabel_format(axis="x", useOffset=False)
    panel.yaxis.get_major_locator().set_params(integer=True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)


def _summary(values: np.ndarray) -> dict[str, float]:
    names = ("mean", "std", "min", "median", "max")
    return {name: float(getattr(np, name)(values)) for name in names}
