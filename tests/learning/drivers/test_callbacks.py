"""Functions of the host in compiled programs, and the compile cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache, monitoring  # pyright: ignore[reportPrivateUsage]

from rljax.learning.drivers import callbacks

HIT = "/jax/compilation_cache/cache_hits"
stood_in_for = pytest.mark.skipif(
    jax.__version_info__ >= (0, 11), reason="this JAX keeps such programs by itself"
)


@pytest.fixture
def hits(tmp_path: Path) -> Iterator[list[str]]:
    """The loads from a compile cache of this test's own."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: jax.config.values[name] for name in settings}
    found: list[str] = []

    def note(event: str, **_: object) -> None:
        if event == HIT:
            found.append(event)

    monitoring.register_event_listener(note)
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield found
    monitoring.unregister_event_listener(note)
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def program(
    first: Callable[..., np.ndarray], second: Callable[..., np.ndarray]
) -> Callable[[jax.Array], jax.Array]:
    """x -> second(2 first(x)), always the same text for XLA."""
    shape = jax.ShapeDtypeStruct((3,), np.float32)

    def called(x: jax.Array) -> jax.Array:
        return callbacks.called_from_within(second, shape)(
            2 * callbacks.called_from_within(first, shape)(x)
        )

    return jax.jit(called)


def test_programs_from_the_cache_call_the_functions_of_today(hits: list[str]) -> None:
    x = jnp.arange(3, dtype=jnp.float32)
    with callbacks.cached_with_callbacks():
        np.testing.assert_array_equal(program(lambda a: a + 1, lambda a: a * a)(x), [4, 16, 36])
        hits.clear()
        np.testing.assert_array_equal(program(lambda a: a + 2, lambda a: a - 1)(x), [3, 5, 7])
    assert hits == [HIT]


@stood_in_for
def test_jax_is_left_as_it_was(hits: list[str]) -> None:
    from jax._src import compiler  # pyright: ignore[reportPrivateUsage]

    def fails() -> None:
        with callbacks.cached_with_callbacks():
            assert compiler.compile_or_get_cached is not before
            raise ZeroDivisionError

    before = compiler.compile_or_get_cached
    with pytest.raises(ZeroDivisionError):
        fails()
    assert compiler.compile_or_get_cached is before
    x = jnp.arange(3, dtype=jnp.float32)
    for _ in range(2):
        np.testing.assert_array_equal(program(lambda a: a, lambda a: a)(x), [0, 2, 4])
    assert not hits


@stood_in_for
def test_another_jax_compiles_anew(hits: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import compiler  # pyright: ignore[reportPrivateUsage]

    real = compiler.compile_or_get_cached
    monkeypatch.setattr(compiler, "compile_or_get_cached", lambda *all_of_them: real(*all_of_them))
    x = jnp.arange(3, dtype=jnp.float32)
    with callbacks.cached_with_callbacks():
        for _ in range(2):
            np.testing.assert_array_equal(program(lambda a: a, lambda a: a)(x), [0, 2, 4])
    assert not hits
