"""Films of episodes: MP4 files, and the HTML view of Brax."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax.envs import drawing
from rljax.envs.autoreset import AutoReset
from rljax.envs.timed import Timed


def write(frames: Sequence[np.ndarray], path: Path, frames_per_second: float) -> Path:
    """Write frames [H, W, 3] uint8 as a video; the suffix of `path` names the format (.mp4, .gif).

    Raises `ValueError` for a suffix that is no video.
    """
    if path.suffix not in (".mp4", ".gif"):
        raise ValueError(f"'{path}' is not the name of a video: it must end in .mp4 or .gif.")
    try:
        import imageio.v3 as imageio
        import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"writing a video needs a package that is not installed ({error.name}): pip install 'rljax[video]'"
        ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    even = [frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames]  # as H.264 demands
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # ffmpeg is another program: no lock is shared
        if path.suffix == ".gif":
            imageio.imwrite(path, even, duration=1000 / frames_per_second, loop=0)
        else:
            imageio.imwrite(path, even, fps=frames_per_second, macro_block_size=1)
    return path


def brax(
    environment: AutoReset, policy: Callable[[Any], np.ndarray], seed: int, max_steps: int, path: Path
) -> list[Path]:
    """Play one episode of a Brax environment: its HTML view beside `path`, and the video itself.

    Without a display, `drawing.choose_renderer` comes before anything imports Brax. Raises `ValueError` where the video
    cannot be drawn; the HTML view is there even so.
    """
    from brax.io import html, image

    adapter: Any = environment.environment
    timed = isinstance(adapter, Timed)
    brax: Any = adapter.environment if timed else adapter
    simulator = brax.simulator
    reset, step = jax.jit(adapter.reset), jax.jit(adapter.step)
    key = jax.random.key(seed)
    observation, state = reset(key, None)
    states = [(state.environment if timed else state).pipeline_state]
    for _ in range(min(max_steps, environment.spec.max_episode_steps or max_steps)):
        observation, state, _, terminated, _, _ = step(key, state, policy(observation), None)
        states.append((state.environment if timed else state).pipeline_state)
        if terminated:
            break
    system = simulator.sys.tree_replace({"opt.timestep": simulator.dt})
    path.parent.mkdir(parents=True, exist_ok=True)
    page = path.with_suffix(".html")
    page.write_text(html.render(system, states))
    try:
        frames: Any = image.render_array(simulator.sys, states, height=240, width=320)
    except Exception as error:
        raise ValueError(
            f"'{environment.spec.name}' could not be rendered, with {type(error).__name__}: {error}.{drawing.HINT} "
            f"Its HTML view is in {page}"
        ) from error
    return [page, write(frames, path, 1.0 / float(simulator.dt))]
