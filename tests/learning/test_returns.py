"""Returns of another form are refused at a run's start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rljax import buffers
from rljax.agent import EnvSpec
from rljax.learning.learner import Learner
from tests.helpers.counting import Fake, settings

SPEC = EnvSpec("Some", (2,), 1)


class Altered(Fake):
    def __init__(self, act: Callable | None = None, update: Callable | None = None) -> None:
        self.alter_act = act or (lambda action, extras: (action, extras))
        self.alter_update = update or (lambda state, metrics: (state, metrics))

    def act(self, *arguments: Any) -> Any:
        return self.alter_act(*super().act(*arguments))

    def update(self, *arguments: Any) -> Any:
        return self.alter_update(*super().update(*arguments))


class Remembering(Fake):
    def __init__(self, after: Any) -> None:
        self.after = after

    def remember(self, spec: EnvSpec, config: Any) -> Any:
        return {"hidden": jnp.zeros(2)}

    def act(self, *arguments: Any) -> Any:
        return *super().act(*arguments[:-1]), self.after


class Reviewing(Fake):
    def review(self, state: Any, outcome: Any, time: Any, config: Any) -> Any:
        return state.replace(count=time)


class Prioritised(Altered):
    def experience(self, config: Any) -> Any:
        draw = buffers.Prioritised(exponent=0.5, correction=0.5)
        return buffers.Replay(replay_size=20, batch_size=config.batch_size, num_envs=4, draw=draw)


def begin(agent: Any, num_learners: int) -> None:
    learners = Learner(agent, SPEC, num_learners)
    hyper = learners.hyperparameters(settings(num_learners, num_envs=4, replay_size=20))
    keys = jax.random.split(jax.random.key(0), num_learners)
    jax.eval_shape(lambda keys: learners.init(keys, hyper), keys)


CASES: dict[str, tuple[Any, str]] = {
    "no extras": (
        Altered(act=lambda action, extras: action),
        r"`act` of Altered returns a \w+; it must return ",
    ),
    "only a tuple of one": (
        Altered(act=lambda action, extras: (action,)),
        r"`act` of Altered returns a tuple of 1; it must return \(action, extras\)",
    ),
    "no action axis": (
        Altered(act=lambda action, extras: (action[:, 0], extras)),
        (
            r"`act` of Altered returns actions of shape \(4,\) for 4 environments of 'Some'; their "
            r"shape must be \(4, 1\), one row for each of the observations \[E, O\.\.\.\]"
        ),
    ),
    "integers": (
        Altered(act=lambda action, extras: (action.astype(jnp.int32), extras)),
        r"`act` of Altered returns actions of type int32; those of 'Some' are float32",
    ),
    "extras of all": (
        Altered(act=lambda action, extras: (action, {"mean": {"x": action.mean(axis=0)}})),
        (
            r"`act` of Altered returns extras\['mean'\] of shape \(1,\) for 4 environments; its "
            r"shape must begin with \(4,\): one row"
        ),
    ),
    "extras that are no dictionary": (
        Altered(act=lambda action, extras: (action, (action,))),
        r"`act` of Altered returns extras of type tuple; they must be a dictionary",
    ),
    "a memory of another shape": (
        Remembering({"hidden": jnp.zeros((4, 3))}),
        (
            r"`act` of Remembering returns another memory than it was given: \['hidden'\] was "
            r"float32\[4, 2\] and becomes float32\[4, 3\]; each part keeps the shape and type that "
            r"`remember` says"
        ),
    ),
    "no metrics": (
        Altered(update=lambda state, metrics: state),
        r"`update` of Altered returns a State; it must return \(State, metrics\)",
    ),
    "a metric per row": (
        Altered(update=lambda state, metrics: (state, {"q": state.rewards[0]})),
        r"`update` of Altered returns metrics\['q'\] of shape \(\d+,\); its shape must be \(\), "
        r"a scalar such as a mean",
    ),
    "a State of another shape": (
        Altered(update=lambda state, metrics: (state.replace(weight=jnp.zeros(3)), metrics)),
        (
            r"`update` of Altered returns another State than it was given: weight was float32\[2\] "
            r"and becomes float32\[3\]; each field keeps its structure, shape and type"
        ),
    ),
    "a State of another type": (
        Altered(
            update=lambda state, metrics: (state.replace(count=jnp.zeros((), jnp.int32)), metrics)
        ),
        r"`update` .*: count was float32\[\] and becomes int32\[\]; ",
    ),
    "a State with less": (
        Altered(update=lambda state, metrics: (state.replace(weight=None), metrics)),
        r"`update` .*: it lacks weight; ",
    ),
    "a reviewed State of another type": (
        Reviewing(),
        (
            r"`review` of Reviewing returns another State than it was given: count was float32\[\] "
            r"and becomes int32\[\]; "
        ),
    ),
    "one priority for all": (
        Prioritised(update=lambda state, metrics: (state, metrics | {"priorities": jnp.ones(())})),
        (
            r"`update` of Prioritised returns metrics\['priorities'\] of shape \(\); its shape "
            r"must be \(\d+,\), one for each row of the batch"
        ),
    ),
}


@pytest.mark.parametrize("num_learners", [1, 2])
@pytest.mark.parametrize(("agent", "message"), CASES.values(), ids=CASES)
def test_what_is_returned_in_another_form_is_refused(
    agent: Any, message: str, num_learners: int
) -> None:
    with pytest.raises(ValueError, match=rf"^{message}") as error:
        begin(agent, num_learners)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("num_learners", [1, 2])
def test_what_the_contract_says_is_accepted(num_learners: int) -> None:
    begin(Altered(), num_learners)
    begin(Remembering({"hidden": jnp.zeros((4, 2))}), num_learners)
    batch = settings(1).batch_size
    begin(
        Prioritised(
            update=lambda state, metrics: (state, metrics | {"priorities": jnp.ones(batch)})
        ),
        num_learners,
    )
