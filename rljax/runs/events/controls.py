"""What callbacks may ask of a run between two chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax import envs
from rljax.agent import check, float_fields
from rljax.learning import configuration, evaluation
from rljax.learning.evaluation import Episodes
from rljax.learning.loop import Training
from rljax.runs import json_files
from rljax.runs.policies.evaluate import require_fit
from rljax.runs.policies.policy import Policies, Policy
from rljax.trust import nearest


class Controls:
    """The run of an event: `event.run`.

    Changes hold from the next chunk on. They are recorded in changes.jsonl and in checkpoints.
    """

    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self.folder = folder
        self.seconds: Callable[[], float] = lambda: 0.0  # since the run began, in all
        self.reason: str | None = None  # why the run stops
        self.saves = False  # a checkpoint was asked for
        self.may_change = True  # not where a run that goes on from a checkpoint would miss it
        self.metrics: dict[str, Any] = {}  # that the next line of metrics gets
        self.changes: list[dict[str, Any]] = []  # lines of changes.jsonl
        self.films: list[tuple[Path, int]] = []  # for loggers, each with its step

    @property
    def total(self) -> int:
        """The steps of each learner, in all."""
        return self._training.total

    @property
    def seeds(self) -> tuple[int, ...]:
        """The learners' seeds [P]."""
        return self._training.settings.seeds

    @property
    def environment(self) -> str:
        """The name of the environment that evaluations play in."""
        return self._training.settings.evaluated_in

    @property
    def config(self) -> Any:
        """The agent's Config now."""
        return self._training.config

    def stop(self, reason: str = "a callback stopped it") -> None:
        """End the run after this chunk, with a checkpoint."""
        self.reason = reason

    def checkpoint(self) -> None:
        """Save a checkpoint after this chunk."""
        self.saves = True

    def add_metrics(self, metrics: Mapping[str, float | Sequence[float]]) -> None:
        """Add numbers, or lists with one number per learner, to the line of metrics of this chunk.

        After an evaluation they belong to the same step.
        """
        values = configuration.native(metrics)
        number = len(self.seeds)
        for name, value in values.items():
            each = [value] * number if isinstance(value, int | float) else list(value)
            if len(each) != number or not all(isinstance(x, int | float) for x in each):
                raise ValueError(
                    f"metric '{name}' is {value!r}, it must be a number, or {number} numbers: one "
                    "for each learner."
                )
            self.metrics[name] = each

    def change(self, **settings: float | Sequence[float]) -> None:
        """Change the agent's settings: a number for all learners, or one for each.

        Raises `ValueError` for settings that decide the structure of programs, and for values that
        the agent refuses.
        """
        self._require_change()
        training, number = self._training, len(self.seeds)
        names = float_fields(type(training.config))
        values = {}
        for name, value in configuration.native(settings).items():
            if name not in names:
                raise ValueError(
                    f"the setting '{name}' cannot change in a run.{nearest(name, names)} Those "
                    f"that can: {', '.join(names)}"
                )
            each = value if isinstance(value, list | tuple) else [value] * number
            if len(each) != number:
                raise ValueError(f"'{name}' has {len(each)} values for {number} learners.")
            values[name] = [float(x) for x in each]
        for learner in range(number):
            each_config = {name: value[learner] for name, value in values.items()}
            check(
                training.module,
                training.spec,
                configuration.replace(training.experiment.config, each_config, "change"),
            )
        training.set(values)
        self._record(values=values, parents=list(range(number)))

    def change_environment(self, **parameters: Any) -> None:
        """Change parameters of the environments in which learners learn, not of evaluations.

        On the host these are attributes of the environments; inside the program, fields of
        `params`, and the program compiles anew. Values are numbers, texts and lists of these.

        Raises `ValueError` for parameters that the environment lacks.
        """
        self._require_change()
        json_files.dumps(parameters)
        self._training.change_environment(parameters)
        self._record(environment=parameters)

    def policies(self) -> Policies:
        """The policies of all learners as they are now."""
        training = self._training
        dataset = training.dataset
        return Policies(
            training.settings,
            training.spec,
            training.module,
            training.stacked,
            training.driver.policies,
            training.step,
            None if dataset is None else dataset.reference,
            training.spaces,
        )

    def policy(self, learner: int = 0) -> Policy:
        """A learner's policy as it is now: a function of observations, as `rljax.load` returns."""
        return Policy(self.policies(), learner)

    def evaluator(self, env: str, episodes: int) -> Any:
        """What plays `episodes` episodes of each learner in the environment `env`.

        Raises `ValueError` for an environment with other spaces.
        """
        training = self._training
        observed = envs.observed(env, training.experiment.experience.observes)
        number = len(self.seeds)
        evaluator = evaluation.make(training.module, observed, number, episodes, {})
        require_fit(training.spec, evaluator.spec)
        return evaluator

    def evaluate(self, evaluator: Any, episodes: int) -> Episodes:
        """Play `episodes` episodes with each learner, seeded by its seed and the step."""
        training = self._training
        starts = evaluator.starts(training.settings.seeds, episodes, training.step)
        return evaluator(training.driver.policies, starts, training.stacked)

    def _require_change(self) -> None:
        if not self.may_change:
            raise ValueError(
                "settings and environments change after metrics or an evaluation: a run that goes "
                "on from this checkpoint would not know of a change now."
            )

    def _record(self, **change: Any) -> None:
        self.changes.append({"step": self._training.step, **change, "scores": None})
