"""Views of episodes: MP4, Brax's HTML, and text."""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax import envs
from rljax.envs.autoreset import AutoReset
from rljax.envs.environment import Drawable
from rljax.envs.host import rendering
from rljax.envs.host.hosted import Hosted
from rljax.envs.last_step import WithLastStep
from rljax.envs.timed import Timed
from rljax.learning.drivers.driver import EVALUATE, environment_seeds
from rljax.learning.named_code import PARTS
from rljax.runs import arguments
from rljax.runs.policies.evaluate import close
from rljax.runs.policies.loading import load_all
from rljax.runs.policies.policy import Policies, Policy
from rljax.system import outputs
from rljax.system.packages import install_command
from rljax.trust import Folder

# Names of the environment, also as agents observe it; the policy; the episodes' seeds.
Player = tuple[str, str, Policy, list[int]]
DISPLAYS = {"DISPLAY", "WAYLAND_DISPLAY"}  # variables that name one


def play(
    out: str | Path | Folder,
    *,
    learner: int = 0,
    best: bool = False,
    seed: int = 0,
    max_steps: int = 1_000,
    episodes: int = 1,
    output: Path | None = None,
) -> Sequence[Path]:
    """Film episodes of up to `max_steps` each, from their first to their last state, and return
    the written files: MP4, and for brax/ environments HTML too.

    Raises `ValueError` for an environment that cannot be rendered and for an output that is no
    video's name, `OSError` for one that cannot be written.
    """
    folder = arguments.run_folder(out)
    player = _player(folder, learner, best, seed, episodes)
    output = _video(output or folder.path / "play.mp4")
    outputs.require_makeable(output)
    return _filmed(player, output, max_steps)


def film(policies: Policies, output: Path, max_steps: int = 1_000) -> Sequence[Path]:
    """Film an episode of the first learner of `policies`, as `play` does."""
    return _filmed(_player_of(policies, learner=0, seed=0, episodes=1), _video(output), max_steps)


def require_pictures(env: str) -> None:
    """Raise `ValueError` where the environment `env` cannot be filmed, or a package is missing."""
    rendering.choose_renderer()
    _require_imageio()
    if not envs.is_compiled(env):
        hosted = envs.make_hosted(envs.evaluated(env), 1, render_mode="rgb_array")
        hosted.reset([0])
        hosted.render()
        close(hosted)
    elif not env.startswith("brax/"):
        _drawer(envs.make(env), "render")


def _filmed(player: Player, output: Path, max_steps: int) -> Sequence[Path]:
    rendering.choose_renderer()
    name, observed_name, policy, starts = player
    if envs.is_compiled(name):
        filmed, environment = brax if name.startswith("brax/") else drawn, envs.make(observed_name)
        each = (episode(environment, policy, start, max_steps) for start in starts)
        return filmed(environment, itertools.chain.from_iterable(each), output)
    hosted = envs.make_hosted(envs.evaluated(observed_name), 1, render_mode="rgb_array")
    frames: list[np.ndarray] = []
    hosted.at_end = lambda: frames.append(hosted.render())
    for start in starts:
        observation = hosted.reset([start])
        frames.append(hosted.render())
        for step in _steps(hosted, policy, observation, max_steps):
            if not _ends(step):  # the last state is in `frames`: its episode is over here
                frames.append(hosted.render())
    close(hosted)
    return [write(frames, output, hosted.frames_per_second)]


def window(
    out: str | Path | Folder,
    *,
    learner: int = 0,
    best: bool = False,
    seed: int = 0,
    max_steps: int = 1_000,
    episodes: int = 1,
) -> Iterator[str]:
    """Play episodes in a window of Gymnasium's `render_mode="human"`; a line of text for each.

    Raises `ValueError` without a display, and for environments without a window.
    """
    folder = arguments.run_folder(out)
    film = f"As a film: rljax play {folder.path}"
    if sys.platform.startswith("linux") and not DISPLAYS & os.environ.keys():
        raise ValueError(
            f"there is no display for a window: neither {' nor '.join(sorted(DISPLAYS))} is set. "
            f"{film}"
        )
    name, observed_name, policy, starts = _player(folder, learner, best, seed, episodes)
    if envs.is_compiled(name):
        raise ValueError(f"'{name}' is not Gymnasium's and has no window. {film}")
    with warnings.catch_warnings():  # the message below says it
        warnings.filterwarnings("ignore", ".*initialised with render_mode")
        hosted = envs.make_hosted(envs.evaluated(observed_name), 1, render_mode="human")
    try:
        if "human" not in (hosted.vector_env.metadata or {}).get("render_modes", ()):
            raise ValueError(f"'{name}' has no render_mode 'human', so no window. {film}")
        for number, start in enumerate(starts, 1):
            observation, total, length = hosted.reset([start]), 0.0, 0
            for step in _steps(hosted, policy, observation, max_steps):
                total, length = float(step.episode_return[0]), int(step.episode_length[0])
            yield f"episode {number}: return {total:,.1f} in {length:,} steps"
    finally:
        close(hosted)


def tell(
    out: str | Path | Folder,
    *,
    learner: int = 0,
    best: bool = False,
    seed: int = 0,
    max_steps: int = 1_000,
    colours: bool = False,
    episodes: int = 1,
) -> Iterator[str]:
    """Episodes as text, state by state. Raises `ValueError` for those without a `text`."""
    folder = arguments.run_folder(out)
    name, observed_name, policy, starts = _player(folder, learner, best, seed, episodes)
    if not envs.is_compiled(name):
        raise ValueError(f"'{name}' cannot be shown as text. As a video: rljax play {folder.path}")
    environment = envs.make(observed_name)
    each = (episode(environment, policy, start, max_steps) for start in starts)
    return itertools.chain.from_iterable(told(environment, states, colours) for states in each)


def _steps(hosted: Hosted, policy: Policy, observation: Any, max_steps: int) -> Iterator[Any]:
    """The steps of the episode that begins with `observation`, [1] each, up to its end."""
    for time in range(max_steps):
        step: Any = hosted.step(policy(observation, normalised=True, step=time))
        yield step
        if _ends(step):
            break
        observation = step.observation


def _ends(step: Any) -> bool:
    return bool(step.terminated[0] or step.truncated[0])


def _player(folder: Folder, learner: int, best: bool, seed: int, episodes: int) -> Player:
    policies = load_all(folder, best=best, parts=PARTS)
    player = _player_of(policies, learner, seed, max(episodes, 1))
    if player[0] == "none":
        raise ValueError(f"the run in '{folder.path}' has no environment to play in.")
    if episodes < 1:
        raise ValueError(f"--episodes is {episodes}, there must be at least 1.")
    return player


def _player_of(policies: Policies, learner: int, seed: int, episodes: int) -> Player:
    name = policies.settings.evaluated_in
    observed_name = envs.observed(name, policies.experience.observes)
    starts = environment_seeds(seed, EVALUATE, number=episodes)
    return name, observed_name, Policy(policies, learner), starts


def write(frames: Sequence[np.ndarray], path: Path, frames_per_second: float) -> Path:
    """Write frames [H, W, 3] uint8 as a video. Raises `ValueError` for another suffix than .mp4 or
    .gif.
    """
    _video(path)
    imageio = _require_imageio()
    path.parent.mkdir(parents=True, exist_ok=True)
    # H.264 needs even sizes
    even = [frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames]
    options: dict[str, Any] = {"fps": frames_per_second, "macro_block_size": 1}
    if path.suffix == ".gif":
        options = {"duration": 1000 / frames_per_second, "loop": 0}
    with warnings.catch_warnings():
        # Ffmpeg is a separate program and shares no lock.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        imageio.imwrite(path, even, **options)
    return path


def _require_imageio() -> Any:
    try:
        import imageio.v3 as imageio
        import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"writing a video needs a package that is not installed ({error.name}): "
            f"{install_command('video')}"
        ) from None
    return imageio


def _video(path: Path) -> Path:
    if path.suffix not in (".mp4", ".gif"):
        raise ValueError(f"'{path}' is not the name of a video: it must end in .mp4 or .gif.")
    return path


def episode(
    environment: AutoReset, policy: Callable[..., np.ndarray], seed: int, max_steps: int
) -> Iterator[Any]:
    """All states of one episode of an environment inside the program."""
    adapter: Any = environment.environment
    timed = isinstance(adapter, Timed)
    step = jax.jit(adapter.step)
    key = jax.random.key(seed)
    observation, state = jax.jit(adapter.reset)(key, adapter.params)
    yield state.environment if timed else state
    for time in range(min(max_steps, environment.spec.max_episode_steps or max_steps)):
        observation, state, _, terminated, truncated, _ = step(
            jax.random.fold_in(key, time), state, policy(observation, step=time), adapter.params
        )
        yield state.environment if timed else state
        if terminated or truncated:
            break


def drawn(environment: AutoReset, states: Iterable[Any], path: Path) -> list[Path]:
    """Film an episode with the environment's own `render`."""
    drawer = _drawer(environment, "render")
    frames = [drawer.render(state, drawer.params) for state in states]
    return [write(frames, path, drawer.frames_per_second)]


def told(environment: AutoReset, states: Iterable[Any], colours: bool) -> Iterator[str]:
    """An episode as text, state by state."""
    drawer = _drawer(environment, "text")
    for time, state in enumerate(states):
        yield f"step {time}\n{drawer.text(state, drawer.params, colours)}\n"


def brax(environment: AutoReset, states: Iterable[Any], path: Path) -> list[Path]:
    """Film an episode of a Brax environment, with Brax's HTML view beside the video.

    Without a display, call `rendering.choose_renderer` before anything imports Brax. Raises
    `ValueError`, after the HTML view, where the video cannot be drawn.
    """
    from brax.io import html, image

    simulator = _bare(environment).simulator
    poses = [state.pipeline_state for state in states]
    system = simulator.sys.tree_replace({"opt.timestep": simulator.dt})
    path.parent.mkdir(parents=True, exist_ok=True)
    page = path.with_suffix(".html")
    page.write_text(html.render(system, poses))
    try:
        frames: Any = image.render_array(simulator.sys, poses, height=240, width=320)
    except Exception as error:
        raise ValueError(
            f"'{environment.spec.name}' could not be rendered, with {type(error).__name__}: "
            f"{error}.{rendering.HINT} Its HTML view is in {page}"
        ) from error
    return [page, write(frames, path, 1.0 / float(simulator.dt))]


def _bare(environment: AutoReset) -> Any:
    """The task itself, whose state its wrappers have."""
    inside: Any = environment.environment
    while isinstance(inside, Timed | WithLastStep):
        inside = inside.environment
    return inside


def _drawer(environment: AutoReset, part: str) -> Drawable:
    drawer = _bare(environment)
    if not hasattr(drawer, part):
        raise ValueError(
            f"'{environment.spec.name}' has no pictures: `rljax play` films Gymnasium's and Brax's "
            "environments and those with a `render` of their own, such as rljax/LightsOut-5x5, and "
            "prints those with a `text`."
        )
    return drawer
