"""What the machine has, and what is in the way of a training: rljax doctor."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

from rljax.cli import parsing
from rljax.system.packages import DISTRIBUTION, install_command

RENDERERS = ("egl", "osmesa", "glfw")  # values of MUJOCO_GL
RENDER_SECONDS = 60
RENDER = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(data)
renderer.render()
"""
LITTLE_DISK, NO_DISK = 2e9, 2e8  # bytes
LITTLE_MEMORY = 2e9

State = Literal["good", "note", "wrong"]
MARKS = {"good": "ok", "note": "note", "wrong": "WRONG"}


@dataclasses.dataclass(frozen=True)
class Reading:
    """One thing that was looked at."""

    state: State  # "wrong" means that nothing can be trained
    what: str
    says: str
    remedy: str = ""


@dataclasses.dataclass
class Doctor:
    """Look at devices, packages, compile cache, rendering, extras and disk, and say what is wrong
    and how to mend it. The exit code is 1 where nothing can be trained.
    """


def doctor(arguments: list[str]) -> None:
    """rljax doctor"""
    parsing.parse(Doctor, arguments, "doctor")
    from rljax.trust import printable

    states = []
    for line in examine():
        states.append(line.state)
        remedy = f"\n{'':24}{line.remedy}" if line.remedy else ""
        print(f"{MARKS[line.state]:<6} {line.what:<16} {printable(line.says)}{remedy}", flush=True)
    wrong, notes = states.count("wrong"), states.count("note")
    verdict = "rljax cannot train here." if wrong else "rljax can train here."
    print(f"\n{verdict} {wrong} wrong, {notes} to note.")
    raise SystemExit(int(wrong > 0))


def examine() -> Iterator[Reading]:
    """All lines, in the order in which they are printed."""
    for part in (python, packages, devices, training, cache, disk, memory, rendering, extras):
        try:
            yield from part()
        except Exception as error:  # a broken package can raise anything
            says = f"{type(error).__name__}: {error}"
            yield Reading(
                "wrong", part.__name__, says, "Install again: pip install --force-reinstall"
            )


def python() -> Iterator[Reading]:
    """Python and the system."""
    says = f"{platform.python_version()} on {platform.platform()}, {os.cpu_count()} processors"
    yield Reading("good", "Python", says)


def packages() -> Iterator[Reading]:
    """The packages that rljax needs."""
    from packaging.requirements import Requirement

    tested = _tested()
    good = []
    for text in metadata.requires(DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        if version is None:
            yield Reading("wrong", requirement.name, "is not installed", remedy)
        elif not requirement.specifier.contains(version, prereleases=True):
            says = f"{version}, and rljax needs {requirement.specifier}"
            yield Reading("wrong", requirement.name, says, remedy)
        else:
            known = tested.get(requirement.name.lower())
            other = "" if known in (None, version) else f" (tested: {known})"
            good.append(f"{requirement.name} {version}{other}")
    yield Reading("good", "packages", f"rljax {_version(DISTRIBUTION)}; {', '.join(good)}")


def devices() -> Iterator[Reading]:
    """JAX's devices, and a GPU that it does not see."""
    import jax

    from rljax.system import hardware

    names = [f"{device.device_kind} ({device.platform}:{device.id})" for device in jax.devices()]
    left = hardware.device_memory()
    room = "" if left is None else f", {left / 1e9:,.0f} GB left"
    yield Reading("good", "devices", f"{', '.join(names)}{room}")
    has_gpu = shutil.which("nvidia-smi") is not None or Path("/dev/nvidia0").exists()
    if has_gpu and jax.default_backend() == "cpu":
        asked = os.environ.get("JAX_PLATFORMS")
        remedy = f"unset JAX_PLATFORMS (it is {asked})" if asked else install_command("cuda13")
        yield Reading("note", "GPU", "there is an NVIDIA GPU that JAX does not use", remedy)


def training() -> Iterator[Reading]:
    """A small program with a gradient."""
    import jax
    import jax.numpy as jnp

    began = time.perf_counter()
    slope = jax.jit(jax.grad(lambda x: jnp.tanh(x @ x).sum()))(jnp.ones((64, 64)))
    if not bool(jnp.isfinite(slope).all()):
        yield Reading("wrong", "compiling", "a small program returns numbers that are not finite")
        return
    yield Reading("good", "compiling", f"a small program in {time.perf_counter() - began:.1f} s")


def cache() -> Iterator[Reading]:
    """The folder of compiled programs."""
    from jax import config as jax_settings

    from rljax.system import runtime

    runtime.persist_compilations()
    if not jax_settings.values["jax_enable_compilation_cache"]:
        remedy = "unset JAX_ENABLE_COMPILATION_CACHE"
        yield Reading("note", "compile cache", "is off: each process compiles everything", remedy)
        return
    folder = Path(jax_settings.values["jax_compilation_cache_dir"])
    files = [path for path in folder.glob("*") if path.is_file()] if folder.is_dir() else []
    size = sum(path.stat().st_size for path in files)
    says = f"{folder}, {len(files):,} files, {size / 1e6:,.0f} MB"
    problem = _unwritable(folder)
    if problem is None:
        yield Reading("good", "compile cache", says)
    else:
        remedy = f"chmod u+w {folder}, or JAX_COMPILATION_CACHE_DIR=/another/folder"
        yield Reading("note", "compile cache", f"{says}; cannot be written: {problem}", remedy)


def disk() -> Iterator[Reading]:
    """The folder for runs."""
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    says = f"{free / 1e9:,.1f} GB free in {here}"
    problem = _unwritable(here)
    if problem is not None:
        remedy = "go to another folder, or give each run --out DIR"
        yield Reading("wrong", "disk", f"{here} cannot be written: {problem}", remedy)
    elif free < NO_DISK:
        yield Reading("wrong", "disk", says, "make room, or go to another disk")
    else:
        yield Reading("good" if free > LITTLE_DISK else "note", "disk", says)


def memory() -> Iterator[Reading]:
    """Main memory."""
    from rljax.system import hardware

    left = hardware.available_memory()
    if left is not None:
        state: State = "good" if left > LITTLE_MEMORY else "note"
        yield Reading(state, "memory", f"{left / 1e9:,.1f} GB left for this process")


def rendering() -> Iterator[Reading]:
    """Which of MuJoCo's renderers work, and whether films can be written."""
    from rljax.envs.host import rendering

    asked = os.environ.get("MUJOCO_GL")
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", RENDER],
            env=os.environ | {"MUJOCO_GL": name},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in RENDERERS
    }
    works = [name for name, process in processes.items() if _succeeds(process)]
    displays = {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    says = f"MUJOCO_GL={', '.join(works)} works" if works else "no renderer of MuJoCo works"
    says += f"; MUJOCO_GL is {asked}" if asked else ""
    says += "" if displays else "; there is no display, so no windows"
    if asked and asked not in works:
        yield Reading(
            "note", "rendering", says, f"MUJOCO_GL={works[0]}" if works else rendering.HINT
        )
    else:
        state: State = "good" if works else "note"
        yield Reading(state, "rendering", says, "" if works else rendering.HINT.strip())


def extras() -> Iterator[Reading]:
    """Optional packages."""
    from packaging.requirements import Requirement

    present, absent = [], []
    for extra in metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ():
        lacking = any(_missing(Requirement(f"{DISTRIBUTION}[{extra}]")))
        (absent if lacking else present).append(extra)
    yield Reading("good", "extras", f"installed: {', '.join(present) or 'none'}")
    if absent:
        remedy = f"where you need one: {install_command('EXTRA')}; docs/install.md says what for"
        yield Reading("good", "", f"not installed: {', '.join(absent)}", remedy)


def _missing(requirement: object, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The packages that a requirement with extras needs and that are not installed."""
    from packaging.requirements import Requirement

    assert isinstance(requirement, Requirement)
    text = str(requirement)
    if text in seen:
        return
    if _version(requirement.name) is None:
        yield requirement.name
        return
    for extra in requirement.extras:
        for inner_text in metadata.requires(requirement.name) or ():
            inner = Requirement(inner_text)
            wanted = inner.marker is not None and inner.marker.evaluate({"extra": extra})
            if wanted and not inner.marker.evaluate({"extra": ""}):  # pyright: ignore[reportOptionalMemberAccess]
                yield from _missing(inner, seen | {text})


def _tested() -> dict[str, str]:
    """The versions in requirements.txt of a checkout, by package."""
    from packaging.requirements import InvalidRequirement, Requirement

    import rljax

    file = Path(rljax.__file__).parents[1] / "requirements.txt"
    pins: dict[str, str] = {}
    for text in file.read_text().splitlines() if file.is_file() else ():
        with contextlib.suppress(InvalidRequirement):
            pin = Requirement(text.partition("#")[0].strip())
            if pin.marker is None or pin.marker.evaluate():
                pins[pin.name.lower()] = str(pin.specifier).removeprefix("==")
    return pins


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _unwritable(folder: Path) -> str | None:
    """Why no file can be made in a folder; None where it can. Makes the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _succeeds(process: subprocess.Popen[bytes]) -> bool:
    try:
        return process.wait(RENDER_SECONDS) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
