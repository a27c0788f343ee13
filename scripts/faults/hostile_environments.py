"""Train in environments that misbehave, and see that each ends with the message that it must give.

  python scripts/faults/hostile_environments.py

Each kind of environment trains by `rljax train` three times, each in a process of its own: called
from within the compiled program, stepped beside it, and in processes (`async/`). A training fails
if

- it ends with another exit code, without its message, or with two;
- it prints a traceback that is not the environment's own;
- it takes over fifteen minutes, or leaves a process behind;
- the environment is harmless, and the recorded numbers are not those of a sound one.

An environment that never returns from a step gets Ctrl-C twice, as a user would press it. The
results are counts by kind, in `--output`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from scripts.faults import shared
from tests.helpers import small_runs

MOST_SECONDS = 900.0  # of the clock: other programs may keep the processors busy
MOST_SECONDS_TO_END = 30.0  # of other processes, after the first has ended
REFUSED, FAILED, STOPPED = 2, 1, 130
SMALL = (
    "--steps 60 --config.hidden 8 --config.batch-size 4 --config.warmup-steps 10 --quiet "
    "--config.replay-size 100 --eval-episodes 1 --log-every 20 --eval-every 60 --out trained"
)
TWO_DEVICES = "--xla_force_host_platform_device_count=2"
DRIVERS = {  # the prefix of the environment's name, and the flags of XLA
    "within the program": ("", ""),
    "beside it": ("", TWO_DEVICES),  # several devices cannot call the host from within
    "in processes": ("async/", TWO_DEVICES),
}
FILE = "hostile.py"
SOURCE = '''
import os, subprocess, sys, time, warnings
import gymnasium, numpy as np
from gymnasium import spaces

class Sound(gymnasium.Env):
    """Random observations; episodes of 15 steps."""
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))
    calls = resets = 0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.resets = 0, self.resets + 1
        return self.observed(), self.told()

    def step(self, action):
        self.length, self.calls = self.length + 1, self.calls + 1
        reward = float(np.sum(action))
        result = [self.observed(), reward, False, self.length == 15, self.told()]
        if self.calls == 25:
            result = self.spoilt(result) or result
        return tuple(result)

    def observed(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def told(self):
        return {}

    def spoilt(self, result):
        """At the 25th call."""

class Choosing(Sound):
    action_space = spaces.Discrete(3)

    def told(self):
        return {"action_mask": np.ones(3, np.int8)}
'''
IN_STEP = r"environment 0 of '.*' raised {} in step 10 of its episode"
RETURNED = r"environment 0 of '.*' returned (?:an? )?{}"


class Kind(NamedTuple):
    """A kind of environment: the body of its class, and how its training ends."""

    body: str
    says: str  # a pattern in the error's message; "" where the training goes well
    code: int = REFUSED
    base: str = "Sound"
    agent: str = "sac"
    only: tuple[str, ...] = tuple(DRIVERS)
    same: bool = True  # a training that goes well records the numbers of a sound one


def at_step(code: str) -> str:
    """The body of a class whose 25th step runs `code`, with the `result` of a sound one."""
    return f"def spoilt(self, result):\n        {code}\n        return result"


def at_reset(code: str, number: int = 2) -> str:
    """The body of a class whose reset with this number runs `code` before it returns `new`."""
    return (
        "def reset(self, **options):\n        new = list(super().reset(**options))\n"
        f"        if self.resets == {number}:\n            {code}\n        return tuple(new)"
    )


KINDS = {
    # Errors
    "raises when made": Kind(
        "def __init__(self, render_mode=None):\n        raise FileNotFoundError('model.xml')",
        r"raised FileNotFoundError when it was made: model\.xml",
    ),
    "raises in the first reset": Kind(
        at_reset("raise KeyError('map')", 1), r"raised KeyError in reset: 'map'"
    ),
    "raises in the second reset": Kind(
        at_reset("raise KeyError('map')"), r"raised KeyError in reset: 'map'"
    ),
    "raises in a step": Kind(at_step("1 / 0"), IN_STEP.format("ZeroDivisionError")),
    "raises StopIteration": Kind(at_step("next(iter(()))"), IN_STEP.format("StopIteration")),
    "recurses without end": Kind(
        at_step("return self.spoilt(result)"), IN_STEP.format("RecursionError")
    ),
    "runs out of memory": Kind(
        at_step("raise MemoryError('no room')"), IN_STEP.format("MemoryError")
    ),
    "fails an assertion": Kind(at_step("assert False, 'state'"), IN_STEP.format("AssertionError")),
    "calls sys.exit": Kind(at_step("sys.exit(3)"), IN_STEP.format("SystemExit")),
    "calls sys.exit in reset": Kind(at_reset("sys.exit(0)"), "raised SystemExit in reset"),
    "raises KeyboardInterrupt": Kind(
        at_step("raise KeyboardInterrupt"), "stopped at once|KeyboardInterrupt", STOPPED
    ),
    "raises on close": Kind(
        "def close(self):\n        raise RuntimeError('cannot close')",
        "raised RuntimeError in close: cannot close",
    ),
    "lost its child process": Kind(
        at_step(
            "child = subprocess.Popen([sys.executable, '-c', ''], stdin=subprocess.PIPE); "
            "child.wait(); child.stdin.write(b'x' * 100_000); child.stdin.flush()"
        ),
        IN_STEP.format("BrokenPipeError"),
    ),
    "its process dies": Kind(
        at_step("os._exit(3)"), "a process of '.*' has ended by itself", only=("in processes",)
    ),
    "its process is killed": Kind(
        at_step("os.kill(os.getpid(), 9)"), "a process of '.*' has ended by itself",
        only=("in processes",),
    ),
    "never returns from a step": Kind(
        at_step("open('hangs', 'w').close(); time.sleep(1e6)"), "stopped at once", STOPPED
    ),
    # Another interface
    "steps as Gym did": Kind(
        "def step(self, action):\n        return self.observed(), 1.0, False, {}",
        r"returned 4 values from step|not enough values",
    ),
    "resets as Gym did": Kind(
        "def reset(self):\n        return self.observed()", "raised TypeError in reset: .*'seed'"
    ),
    "resets to an observation alone": Kind(
        "def reset(self, *, seed=None, options=None):\n        return np.zeros(2, np.float32)",
        "one value of type ndarray from reset|returned from reset",
    ),
    # Observations
    "observes another shape": Kind(
        at_step("result[0] = np.zeros(3, np.float32)"), RETURNED.format(r"observation of shape")
    ),
    "observes another shape at first": Kind(
        at_reset("new[0] = np.zeros((2, 1), np.float32)", 1), r"observation of shape \(2, 1\)"
    ),
    "observes text": Kind(at_step("result[0] = ['a', 'b']"), "no real numbers"),
    "observes complex numbers": Kind(at_step("result[0] = np.zeros(2, complex)"), "real numbers"),
    "observes nothing": Kind(at_step("result[0] = None"), "no real numbers"),
    "observes NaN": Kind(
        at_step("result[0][1] = np.nan"), "returned the observation nan at index 1", FAILED
    ),
    "begins with infinity": Kind(
        at_reset("new[0][0] = np.inf"), "returned the observation inf at index 0", FAILED
    ),
    "lacks a part of its observations": Kind(
        "observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(-1, 1, (2,)))\n"
        "    def observed(self):\n        return {'a': np.zeros(2, np.float32)}",
        "'b'|parts",
    ),
    "promises no observation": Kind(
        "observation_space = spaces.Box(-1, 1, (0,))\n"
        "    def observed(self):\n        return np.zeros(0, np.float32)",
        "observation_space|observations",
    ),
    # Rewards and ends
    "rewards with NaN": Kind(at_step("result[1] = np.nan"), "returned the reward nan", FAILED),
    "rewards with infinity": Kind(
        at_step("result[1] = -np.inf"), "returned the reward -inf", FAILED
    ),
    "rewards twice": Kind(at_step("result[1] = np.zeros(2)"), RETURNED.format("the reward array")),
    "rewards with nothing": Kind(at_step("result[1] = None"), RETURNED.format("the reward None")),
    "rewards with text": Kind(at_step("result[1] = '1'"), RETURNED.format("the reward '1'")),
    "terminates with text": Kind(
        at_step("result[2] = 'no'"), RETURNED.format("terminated = 'no', it must be True or False")
    ),
    "terminates with nothing": Kind(
        at_step("result[2] = None"), RETURNED.format("terminated = None")
    ),
    "truncates with 2": Kind(at_step("result[3] = 2"), RETURNED.format("truncated = 2")),
    "gives no info": Kind(at_step("result[4] = None"), "info None, it must be|python dictionary"),
    # Promises
    "gives no signal": Kind(
        "metadata = {'signals': ['cost']}\n    def told(self):\n"
        "        return {'cost': 1.0} if self.calls < 25 else {}",
        "'cost'",
    ),
    "gives a signal of another shape": Kind(
        "metadata = {'signals': ['cost']}\n    def told(self):\n"
        "        return {'cost': 1.0 if self.calls < 25 else np.ones(2)}",
        "'cost'",
    ),
    "gives a signal of NaN": Kind(
        "metadata = {'signals': ['cost']}\n    def told(self):\n"
        "        return {'cost': 1.0 if self.calls < 25 else np.nan}",
        "signal 'cost' nan",
        FAILED,
    ),
    "allows no action": Kind(
        at_step("result[4]['action_mask'][:] = 0"), "action_mask|mask", base="Choosing", agent="dqn"
    ),
    "forgets its mask": Kind(
        at_step("result[4].clear()"), "no 'action_mask' in the info", base="Choosing", agent="dqn"
    ),
    "masks other actions": Kind(
        at_step("result[4]['action_mask'] = np.ones(4, np.int8)"), "mask",
        base="Choosing", agent="dqn",
    ),
    "masks from a step on": Kind(
        "def told(self):\n        return super().told() if self.calls >= 25 else {}",
        "action_mask", base="Choosing", agent="dqn",
    ),
    # Spaces
    "changes its actions": Kind(
        at_step("self.action_space = spaces.Box(-1, 1, (2,))"), "the action_space of environment 0",
        only=("within the program", "beside it"),  # a process's spaces are not seen
    ),
    "changes its observations": Kind(
        at_step("self.observation_space = spaces.Box(-2, 2, (2,))"),
        "the observation_space of environment 0", only=("within the program", "beside it"),
    ),
    "acts without bounds": Kind(
        "action_space = spaces.Box(-np.inf, np.inf, (1,))", "bound|infinite|finite"
    ),
    "acts with text": Kind("action_space = spaces.Text(3)", r"acts in Text"),
    "is no environment": Kind("", "reset|gymnasium.Env|environment", base="object"),
    # Harmless
    "acts in no range": Kind(
        "action_space = spaces.Box(1, 1, (1,))", "", 0, same=False
    ),
    "prints": Kind(at_step("print('hello'); sys.stderr.write('there\\n')"), "", 0),
    "warns": Kind(at_step("warnings.warn('odd')"), "", 0),
    "changes its arrays afterwards": Kind(
        "def observed(self):\n        if not hasattr(self, 'array'):\n"
        "            self.array = np.zeros(2, np.float32)\n"
        "        self.array[:] = super().observed()\n        return self.array",
        "", 0,
    ),
    "changes the action": Kind(
        "def step(self, action):\n        result = super().step(action)\n"
        "        if getattr(action, 'flags', None) is not None and action.flags.writeable:\n"
        "            action[...] = 0\n        return result",
        "", 0,
    ),
    "gives arrays for numbers": Kind(
        at_step("result[1:4] = np.array([result[1]]), np.bool_(result[2]), np.array(result[3])"),
        "", 0,
    ),
    "gives float64": Kind(at_step("result[0] = result[0].astype('>f8')"), "", 0),
    "changes the folder": Kind(at_step("os.chdir('/')"), "", 0),
    "seeds the global numbers": Kind(
        at_step("import random; random.seed(0); np.random.seed(0)"), "", 0
    ),
    "ignores its seed": Kind(
        "def observed(self):\n        return np.random.uniform(-1, 1, 2).astype(np.float32)",
        "", 0, same=False,
    ),
}  # fmt: skip


class Outcome(NamedTuple):
    """What is wrong with a training, if anything, and what it printed."""

    wrong: list[str]
    said: str


def source(kind: Kind) -> str:
    """The text of a module with the class `Hostile`."""
    return f"{SOURCE}\nclass Hostile({kind.base}):\n    {kind.body or 'pass'}\n"


def train(kind: str, driver: str, folder: Path, sound: Path | None) -> Outcome:
    """Train in the environment of this kind in a new `folder`.

    `sound` is the same agent's run in a sound one.
    """
    (prefix, flags), expected = DRIVERS[driver], KINDS[kind]
    folder.mkdir(parents=True)
    (folder / FILE).write_text(source(expected))
    words = f"train {expected.agent} --env {prefix}{FILE}:Hostile {SMALL}".split()
    code, said, left = run(words, folder, flags)
    return Outcome(problems(expected, code, said, left, folder, sound), said)


def run(words: list[str], folder: Path, flags: str) -> tuple[int | None, str, list[int]]:
    """A command's exit code (None if it took too long), what it printed, and the processes that
    it left behind, which are then killed.
    """
    surroundings = os.environ | {"COLUMNS": "200"}
    surroundings["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "rljax", *words],
            cwd=folder, env=surroundings, start_new_session=True,
            stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
    end, stops = time.monotonic() + MOST_SECONDS, 0
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
        if stops < 2 and (folder / "hangs").exists():
            time.sleep(1.0)  # the training waits for the step
            process.send_signal(signal.SIGINT)
            stops += 1
    code, end = process.poll(), time.monotonic() + MOST_SECONDS_TO_END
    while (left := members(process.pid)) and code is not None and time.monotonic() < end:
        time.sleep(0.2)
    for number in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()
    return code, (folder / "said").read_text(errors="replace"), left


def members(session: int) -> list[int]:
    """The living processes of a session."""
    numbers = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of_session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of_session) == session and state not in "ZX":
            numbers.append(int(stat.parent.name))
    return numbers


def problems(
    expected: Kind, code: int | None, said: str, left: list[int], folder: Path, sound: Path | None
) -> list[str]:
    """What is wrong with how a training ended."""
    wrong = [] if code is not None else [f"over {MOST_SECONDS:.0f} s"]
    if code is not None and code != expected.code:
        wrong.append(f"exit code {code} in place of {expected.code}")
    if left:
        wrong.append(f"{len(left)} processes left behind")
    messages = re.findall(r"^error: .*", said, re.MULTILINE)
    if len(messages) != bool(expected.says):
        wrong.append(f"{len(messages)} messages")
    elif messages and not re.search(expected.says, messages[0]):
        wrong.append("another message")
    if "Traceback" in said.partition("error: ")[0] or re.search(r'File ".*/(rl)?jax/', said):
        wrong.append("a traceback that is not the environment's")
    if not wrong and not expected.says and expected.same and sound is not None:
        if differences := small_runs.different_arrays(sound, folder / "trained"):
            wrong.append(f"other numbers: {differences[:3]}")
        if small_runs.lines(sound) != small_runs.lines(folder / "trained"):
            wrong.append("other records")
    return wrong


def sound_run(driver: str, folder: Path) -> Path:
    """A run of the same agent in a sound environment."""
    folder.mkdir(parents=True)
    (folder / FILE).write_text(source(Kind("", "")))
    prefix, flags = DRIVERS[driver]
    code, said, _ = run(f"train sac --env {prefix}{FILE}:Hostile {SMALL}".split(), folder, flags)
    if code != 0:
        raise SystemExit(f"a sound environment {driver}: exit code {code}\n{said}")
    return folder / "trained"


def main() -> None:
    """Train in each kind of environment with each driver, and write what was counted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--drivers", nargs="+", default=list(DRIVERS), choices=list(DRIVERS))
    parser.add_argument(
        "--output", type=Path, default=Path("results/checks/faults/hostile_environments.json")
    )
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {driver: Counter() for driver in options.drivers}
    with tempfile.TemporaryDirectory() as place:
        for driver in options.drivers:
            harmless = any(not KINDS[kind].says for kind in options.kinds)
            sound = sound_run(driver, Path(place, driver, "sound")) if harmless else None
            for i, kind in enumerate(options.kinds):
                if driver not in KINDS[kind].only:
                    continue
                folder = Path(place, driver, str(i))
                outcome = train(kind, driver, folder, sound)
                shutil.rmtree(folder)
                ended = "failed" if outcome.wrong else "refused" if KINDS[kind].says else "the same"
                counts[driver].update(["environments", ended])
                if outcome.wrong:
                    print(f"{kind}, {driver}: {'; '.join(outcome.wrong)}", flush=True)
                    print(*("  | " + line for line in outcome.said[-800:].splitlines()), sep="\n")
            print(f"{driver}: {dict(counts[driver])}", flush=True)
    shared.finish(options.output, counts, ("environments", "refused", "the same", "failed"))


if __name__ == "__main__":
    main()
