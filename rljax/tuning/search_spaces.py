"""What sweeps search, and how."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.agent import float_fields
from rljax.learning import configuration, registry
from rljax.learning.settings import MOST_LEARNERS

SPACES = registry.AGENTS / "spaces"
METHODS = ("random", "tpe", "hyperband", "pbt")


@dataclasses.dataclass(frozen=True)
class Protocol:
    """The protocol of a sweep. `rljax sweep --help` explains the fields."""

    method: str = "tpe"  # one of METHODS
    trials: int = 64
    population: int = 16
    tuning_seeds: tuple[int, ...] = (0, 1, 2)
    test_seeds: tuple[int, ...] = tuple(range(100, 110))
    every: int | None = None
    eta: int = 3
    min_steps: int | None = None
    search_seed: int = 0
    storage: str | None = None
    study: str = "sweep"
    limits: tuple[str, ...] = ()


def check(protocol: Protocol) -> None:
    """Raise `ValueError` for a protocol that cannot work."""
    if protocol.method not in METHODS:
        raise ValueError(
            f"--method is '{protocol.method}', it must be one of {', '.join(METHODS)}."
        )
    smallest = {"trials": 1, "population": 2 if protocol.method == "pbt" else 1, "eta": 2}
    for name, least in smallest.items():
        number = getattr(protocol, name)
        if number < least:
            raise ValueError(f"--{name} is {number}, it must be at least {least}.")
        if number > MOST_LEARNERS:
            raise ValueError(f"--{name} is {number:,}, it must be at most {MOST_LEARNERS:,}.")
    limits(protocol)
    both = sorted(set(protocol.tuning_seeds) & set(protocol.test_seeds))
    if both:
        raise ValueError(
            f"seeds {listed(both)} are both for tuning and for testing: the settings found would "
            "be tested on the seeds that chose them. Give others: --test-seeds 100 101 102"
        )
    if not protocol.tuning_seeds or not protocol.test_seeds:
        raise ValueError(
            "a sweep needs seeds to tune with and others to test with: --tuning-seeds 0 1 2"
        )


def limits(protocol: Protocol) -> dict[str, float]:
    """The limits on signals by name. Raises `ValueError` for other text."""
    limit_of = {}
    for text in protocol.limits:
        name, sign, value = text.partition("=")
        try:
            limit_of[name] = float(value)
        except ValueError:
            sign = ""
        if not (sign and name and math.isfinite(limit_of[name])):
            raise ValueError(
                f"--limits is '{text}', it must be a signal and its largest value: --limits cost=25"
            )
    return limit_of


def listed(seeds: Sequence[int]) -> str:
    """Seeds as text for users."""
    return " ".join(map(str, seeds))


@dataclasses.dataclass(frozen=True)
class Space:
    """Settings that are searched: `{"low", "high"}`, perhaps with `"log"`, or `{"choices"}`, which
    are text in Optuna's form.
    """

    entries: Mapping[str, Mapping[str, Any]]
    config: Any  # the agent's Config; settings outside the space keep its values

    def distributions(self) -> dict[str, Any]:
        """Optuna's distribution of each setting."""
        from optuna import distributions

        made: dict[str, Any] = {}
        for name, entry in self.entries.items():
            if "choices" in entry:
                texts = list(map(_text, entry["choices"]))
                made[name] = distributions.CategoricalDistribution(texts)
                continue
            low, high, log = entry["low"], entry["high"], entry.get("log", False)
            if self.is_traced(name):
                made[name] = distributions.FloatDistribution(low, high, log=log)
            else:  # a file may say 1e6
                made[name] = distributions.IntDistribution(int(low), int(high), log=log)
        return made

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a trial with these parameters."""
        return {name: self._setting(name, params[name]) for name in self.entries}

    def corner(self, end: int) -> dict[str, Any]:
        """The settings with the first (0) or the last (-1) value of each range or choices."""
        return {
            name: self._setting(name, (entry.get("choices") or [entry["low"], entry["high"]])[end])
            for name, entry in self.entries.items()
        }

    def untuned(self) -> dict[str, Any]:
        """The searched settings with their values in `config`."""
        return {name: getattr(self.config, name) for name in self.entries}

    def is_traced(self, name: str) -> bool:
        """Whether one program can hold all values of a setting."""
        return name in float_fields(type(self.config))

    def _setting(self, name: str, value: Any) -> Any:
        if "choices" in self.entries[name]:
            if _text(value) not in map(_text, self.entries[name]["choices"]):
                raise ValueError(f"search space: {value!r} is no choice of '{name}'.")
            return configuration.parse(self.config, name, _text(value), "search space")
        return float(value) if self.is_traced(name) else value


def space(agent: str, config: Any, file: Path | None = None) -> Space:
    """The search space of an agent, from its own file or from `file`, in TOML: `actor_lr = { low =
    1e-5, high = 1e-2, log = true }`, `batch_size = { choices = [64, 256] }`.

    Raises `ValueError` without a file, and for unknown settings and wrong ranges.
    """
    path = file or SPACES / f"{registry.agent_name(agent)}.toml"
    if not path.exists():
        raise ValueError(
            f"there is no search space '{path}'. Write one and name it: --space FILE "
            "(docs/sweeps.md)"
        )
    try:
        entries = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"search space '{path}' is not TOML: {error}.") from None
    entries.pop("source", None)
    if not entries:
        raise ValueError(f"search space '{path}' names no setting: there is nothing to search.")
    for name, entry in entries.items():
        _check(name, entry, config, f"search space '{path}'")
    return Space(entries, config)


def _check(name: str, entry: Any, config: Any, origin: str) -> None:
    shape = set(entry) if isinstance(entry, dict) else set()
    if shape == {"choices"} and isinstance(entry["choices"], list) and entry["choices"]:
        for choice in entry["choices"]:
            configuration.parse(config, name, _text(choice), origin)
    elif shape in ({"low", "high"}, {"low", "high", "log"}):
        low, high = entry["low"], entry["high"]
        for end in (low, high):
            configuration.replace(config, {name: end}, origin)
        if low >= high or (entry.get("log") and low <= 0):
            raise ValueError(
                f"{origin}: '{name}' goes from {low} to {high}. It must rise, and from above 0 "
                "if log."
            )
    else:
        # Raises for unknown names.
        configuration.replace(config, {name: getattr(config, name, None)}, origin)
        raise ValueError(
            f"{origin}: '{name}' must have low, high and perhaps log, or choices: "
            f"{name} = {{ low = 1e-5, high = 1e-2, log = true }}"
        )


def sampler(method: str, seed: int, generation: int) -> Any:
    """Optuna's sampler for a generation; again, it draws the same trials."""
    import optuna

    generation_seed = int(np.random.SeedSequence([seed, generation]).generate_state(1)[0])
    if method == "random":
        return optuna.samplers.RandomSampler(generation_seed)
    with warnings.catch_warnings():
        # Older versions warn about both.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=generation_seed, multivariate=True, constant_liar=True
        )


def brackets(most: int, least: int, eta: int) -> Iterator[tuple[int, list[int]]]:
    """Hyperband's brackets: a number of trials, and steps after which one of `eta` continues.

    Raises `ValueError` unless `least` lies in [1, most]. Source: Li et al., Hyperband, JMLR 18
    (2018), algorithm 1.
    """
    if not 0 < least <= most:
        raise ValueError(
            f"--min-steps is {least}, it must lie in [1, {most}], the steps of a whole trial."
        )
    deepest = math.floor(math.log(most / least) / math.log(eta) + 1e-9)
    for s in range(deepest, -1, -1):
        rungs = [-(-most // eta**i) for i in range(s, -1, -1)]
        yield math.ceil((deepest + 1) / (s + 1) * eta**s), rungs


def _text(choice: Any) -> str:
    return str(choice).lower() if isinstance(choice, bool) else str(choice)
