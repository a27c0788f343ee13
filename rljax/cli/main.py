"""The command line: commands, errors and exit codes.

Nothing heavy is imported before the arguments are parsed.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence

USAGE = """\
usage: rljax COMMAND ...

Deep reinforcement learning in JAX: one readable file per algorithm, everything around it compiled
and shared.

training
  train AGENT --env ENV    train an agent, one learner per seed:
                           rljax train sac --env Hopper-v5 --steps 3e5
  train AGENT --data DATA  the same from a data set:
                           rljax train iql --data d4rl/hopper-medium-v2 --seeds 4
  sweep AGENT --env ENV    search its settings, and test the best ones on other seeds
  resume DIR               continue a run exactly from its last checkpoint
  extract DIR              copy learners of a run into a run of their own
looking at results
  eval DIR                 play complete episodes with the policy of a run
  play DIR                 write a video of the policy (and Brax's HTML view), or show it in the
                           terminal or a window
  plot DIR...              draw learning curves with intervals, or any metric: --metric actor/kl
  report DIR...            compare all runs in and below folders on one page:  rljax report runs/
  diagnose DIR             say what looks wrong in a run, and what to try
  select DIR...            choose among runs by criteria that need only data
  watch DIR...             follow running runs in the terminal
  list                     agents, environments and presets
using a policy elsewhere
  export DIR --to FORMAT   write the policy for where JAX is not installed: numpy, onnx, stablehlo
  pack DIR                 write all policies of a run as one file, which rljax.load reads
environments and data
  env check ENV            play random actions, and say what an environment does wrong
  data COMMAND             list, info, check, convert and record data sets
changing an agent
  new FILE --from AGENT    copy an agent to a file of your own, to change and train:
                           rljax train ./mine.py ...
this machine
  doctor                   devices, packages, cache, rendering, extras, disk: what is wrong, and how
                           to mend it

`rljax COMMAND --help` explains a command; `rljax train AGENT --help` explains each hyperparameter
of an agent.
"""

# Functions in modules of this package: a command imports only its own.
COMMANDS = {
    "train": "training.train",
    "sweep": "training.sweep",
    "resume": "training.resume",
    "extract": "training.extract",
    "eval": "policies.evaluate_run",
    "play": "policies.play",
    "export": "policies.export",
    "pack": "policies.pack",
    "plot": "analysis.plot",
    "report": "analysis.report",
    "diagnose": "analysis.diagnose",
    "select": "analysis.select",
    "watch": "analysis.watch",
    "env": "environments.main",
    "data": "data.main",
    "list": "agents.list_names",
    "new": "agents.new",
    "doctor": "doctor.doctor",
}
LONGEST = 500  # characters of a word in a message, such as a path
EXIT_USER, EXIT_RUN, EXIT_INTERRUPT = 2, 1, 130
# Imports and tracing make many lasting objects: collecting garbage would take a fifth of the start.
COLLECT_AFTER = (100_000, 20, 100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exits with 2 for a user's mistake, with 1 for a run that failed."""
    gc.set_threshold(*COLLECT_AFTER)
    is_program = arguments is None  # not a call from Python
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return
    if arguments[0] == "--version":
        from rljax import __version__

        print(f"rljax {__version__}")
        return
    if arguments[0] not in COMMANDS:
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        nearest = f"Nearest: {near[0]!r}. " if near else ""
        _fail(f"no command '{arguments[0]}'. {nearest}All of them: rljax --help")
    if is_program:
        import warnings

        from rljax.trust import show_warning

        warnings.showwarning = show_warning
    try:
        _run(_command(arguments[0]), arguments[1:])
    except SystemExit as end:
        _leave_processes(end.code, arguments)
        if end.code == EXIT_INTERRUPT and is_program:
            from rljax.system import interruption

            interruption.leave_at_once(EXIT_INTERRUPT)
        raise


def train_file(path: str) -> None:
    """Train an agent's file that is run as a program: `python agents/sac.py --env ...`."""
    main(["train", path, *sys.argv[1:]])


def _command(name: str) -> Callable[[list[str]], None]:
    module, function = COMMANDS[name].split(".")
    return getattr(importlib.import_module(f"rljax.cli.{module}"), function)


def _run(command: Callable[[list[str]], None], arguments: list[str]) -> None:
    try:
        command(arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, TypeError, OSError) as error:
        if os.environ.get("RLJAX_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            from rljax.runs.json_files import explain

            _fail(f"{explain(error)}.")
        trace = getattr(error, "trace", "")  # of an environment's own code
        _fail(f"{error}\n\n{trace.rstrip()}" if trace else str(error))
    except KeyboardInterrupt:
        _fail("stopped at once; the last checkpoint is safe.", EXIT_INTERRUPT)
    except Exception as error:
        from rljax.distributed import processes
        from rljax.runs import checkpoints, failures

        known = (
            failures.RunError,
            processes.ProcessError,
            checkpoints.CheckpointError,
            FloatingPointError,
        )
        if not isinstance(error, known) or os.environ.get("RLJAX_TRACEBACK"):
            raise
        _fail(str(error), EXIT_RUN)


def _fail(message: str, code: int = EXIT_USER) -> None:
    from rljax.trust import LINES, printable

    message = re.sub(rf"\S{{{LONGEST},}}", lambda word: f"{word[0][: LONGEST - 3]}...", message)
    print(f"error: {printable(message, keep=LINES)}", file=sys.stderr)
    raise SystemExit(code)


def _leave_processes(code: object, arguments: list[str]) -> None:
    from rljax.cli import parsing

    if isinstance(code, int) and code and parsing.value_of(arguments, "--coordinator") is not None:
        from rljax.distributed import processes

        processes.abort(code, last=parsing.value_of(arguments, "--process-id") in ("0", None))
