"""The comparison of TD7 with its authors' agent: their names, rows and noise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import td7
from scripts.updates import compare_td7
from scripts.updates.compare_td7 import ACTIONS, ACTOR, CAPACITY, CRITICS, PAIR, ROWS, STATE

SPEC = EnvSpec("test/Example-v0", (compare_td7.OBSERVATIONS,), ACTIONS)


class Tensor:
    """As much of a tensor as is needed."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def detach(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self.values


def theirs(*parts: Any) -> SimpleNamespace:
    """Layers of ours, (parameters, names) each, as one of their modules."""
    layers = {}
    for params, names in parts:
        flat = {**params.get("layers", params), **params}
        for name, ours in names.items():
            layer = flat[ours]
            weight, bias = Tensor(np.asarray(layer["kernel"]).T), Tensor(layer["bias"])
            layers[name] = SimpleNamespace(weight=weight, bias=bias)
    return SimpleNamespace(**layers)


def agent_of(state: td7.State) -> SimpleNamespace:
    """Their agent with the parameters of our State."""

    def encoder(part: Any) -> Any:
        part = getattr(part, "parameters", part)
        return theirs((part.of_state.params, STATE), (part.of_pair.params, PAIR))

    def critics(params: Any) -> Any:
        each = [jax.tree.map(lambda x, c=c: x[c], params["members"]) for c in range(2)]
        return theirs(*zip(each, CRITICS, strict=True))

    return SimpleNamespace(
        actor=theirs((state.actor.parameters.params, ACTOR)),
        actor_target=theirs((state.target_actor.params, ACTOR)),
        critic=critics(state.critic.parameters.params),
        critic_target=critics(state.target_critic.params),
        encoder=encoder(state.encoder),
        fixed_encoder=encoder(state.fixed_encoder),
        fixed_encoder_target=encoder(state.past_encoder),
    )


@pytest.mark.slow
def test_their_numbers_come_under_our_names() -> None:
    init = jax.jit(td7.init, static_argnums=1)
    one, other = (init(jax.random.key(i), SPEC, compare_td7.CONFIG) for i in range(2))
    known = compare_td7.of_peer(agent_of(one))
    parts = {name: getattr(other, name) for name in known}
    parts = {name: compare_td7.with_parameters(x, known[name]) for name, x in parts.items()}
    copy = compare_td7.of_ours(other.replace(**parts))
    expected = compare_td7.of_ours(one)
    jax.tree.map(np.testing.assert_array_equal, copy, expected)


def test_rows_end_at_times_and_are_drawn_of_those_stored() -> None:
    known = compare_td7.rows(ROWS)
    assert 0 < known["terminated"].sum() < ROWS
    online, offline = (list(compare_td7.draws(200, x)) for x in (False, True))
    assert [steps for steps, *_ in online] == [ROWS + i + 1 for i in range(200)]
    assert {steps for steps, *_ in offline} == {ROWS}
    assert max(rows.max() for _, rows, _ in offline) < ROWS
    assert ROWS < max(rows.max() for _, rows, _ in online) < CAPACITY


def test_distances_are_relative_to_the_way_if_there_is_one() -> None:
    before, after, other = ({"x": np.array([x, 0.0])} for x in (1.0, 3.0, 3.2))
    assert compare_td7.distance(before, after, other) == pytest.approx(0.2 / 2.2)
    assert compare_td7.distance(before, after, before) == pytest.approx(2.0)
