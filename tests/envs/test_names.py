"""The family that a name means, and unknown names."""

import subprocess
import sys

import pytest

from rljax import envs
from rljax.envs.tasks import catalogue


@pytest.mark.parametrize(
    "name", ["brax/ant", "gymnax/CartPole-v1", "rljax/Follow", "rljax/nothing", "./a.py:B"]
)
def test_prefixes_are_inside_the_program(name):
    assert envs.is_compiled(name)


@pytest.mark.parametrize(
    "name",
    [
        "Hopper-v5",
        "ALE/Pong-v5",
        "module:Name-v0",
        "brax",
        "rljax",
        "envpool/Hopper-v5",
        "async/Hopper-v5",
    ],
)
def test_other_names_are_on_the_host(name):
    assert not envs.is_compiled(name)


@pytest.mark.slow
def test_importing_imports_no_simulator():
    code = (
        "import sys, rljax.envs.autoreset, rljax.envs.simulators.brax, "
        "rljax.envs.simulators.gymnax;"
        "import rljax.envs.tasks.catalogue, rljax.envs.host.rendering;"
        "print([name for name in ('brax', 'gymnax', 'gymnasium', 'mujoco') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_by_family():
    names = envs.names()
    assert {"Gymnasium", "rljax", "brax"} <= set(names)
    assert "Hopper-v5" in names["Gymnasium"]
    assert "brax/ant" in names["brax"]
    assert "rljax/Pendulum" in names["rljax"]
    assert "rljax/Follow-discrete" not in names["rljax"]
    assert all(envs.is_compiled(name) for name in names["rljax"] + names["brax"])
    assert not any(envs.is_compiled(name) for name in names["Gymnasium"])


def test_every_environment_has_the_name_that_it_is_made_by():
    names = catalogue.all_names()
    assert {*envs.names()["rljax"]} < {*names}
    assert {envs.make(name).spec.name for name in names} == {*names}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            'rljax/Follow?{"a": 1}',
            r"'rljax/Follow\?.*' takes no arguments: only environments of Gymnasium and gymnax do",
        ),
        (
            "rljax/Folow",
            (
                r"no environment 'rljax/Folow' in rljax. Nearest: 'rljax/Follow'.* All of "
                r"them: rljax list"
            ),
        ),
        ("rljax/pendulum", r"no environment 'rljax/pendulum' in rljax. Nearest: 'rljax/Pendulum'"),
        ("rljax/" + "q" * 40, r"in rljax. All of them: rljax list"),
        (
            "Hopper-v5",
            (
                r"'Hopper-v5' is not inside the program: such names begin with 'rljax/', "
                r"'brax/', 'gymnax/'"
            ),
        ),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=message):
        envs.make(name)


def test_compiled_names_are_not_hosted():
    with pytest.raises(
        ValueError, match="'brax/ant' is inside the program: Gymnasium's names do not begin with"
    ):
        envs.make_hosted("brax/ant", 2)


@pytest.mark.parametrize(
    ("package", "name", "command"),
    [
        ("gymnax", "gymnax/CartPole-v1", r"pip install 'rljax-suite\[gymnax\]'"),
        ("brax", "brax/ant", "pip install brax"),
        ("craftax", "craftax/Classic-Symbolic", r"pip install 'rljax-suite\[craftax\]'"),
    ],
)
def test_an_absent_package_says_what_to_install(monkeypatch, package, name, command):
    envs._made.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    if package == "brax":
        monkeypatch.setitem(sys.modules, "brax.envs", None)
    expected = (
        f"'{package}/' environments need the package '{package}', which is not installed: {command}"
    )
    with pytest.raises(ValueError, match=expected):
        envs.make(name)


def test_other_names_have_no_arguments():
    with pytest.raises(ValueError, match=r"'atari/Pong\?.*' takes no arguments"):
        envs.make_hosted('atari/Pong?{"a": 1}', 1)
    assert not envs.is_compiled('Walk-v0?{"file": "rljax/a.py:B"}')
    assert envs.without_arguments('m:Walk-v0?{"a": 1}') == "m:Walk-v0"


def test_an_absent_package_is_listed_empty(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    names = envs.names()
    assert "gymnax" not in names
    assert names["gymnax (not installed: pip install 'rljax-suite[gymnax]')"] == []


@pytest.mark.parametrize(
    ("name", "task", "evaluated", "short"),
    [
        ("Hopper-v5", "Hopper-v5", "Hopper-v5", "Hopper-v5"),
        ("async/Hopper-v5", "Hopper-v5", "Hopper-v5", "async-Hopper-v5"),
        ("timed/async/Hopper-v5", "Hopper-v5", "timed/Hopper-v5", "timed-async-Hopper-v5"),
        ("envpool/Hopper-v5", "Hopper-v5", "envpool/Hopper-v5", "envpool-Hopper-v5"),
        ("atari/Pong", "atari/Pong", "atari-games/Pong", "atari-Pong"),
        ("brax/ant", "brax/ant", "brax/ant", "brax-ant"),
        ("ALE/Pong-v5", "ALE/Pong-v5", "ALE/Pong-v5", "ALE-Pong-v5"),
        ("../a/b.py:Name", "../a/b.py:Name", "../a/b.py:Name", "Name"),
        ('Walk-v0?{"a": "b/c:d"}', 'Walk-v0?{"a": "b/c:d"}', 'Walk-v0?{"a": "b/c:d"}', "Walk-v0"),
    ],
)
def test_parts_of_names(name, task, evaluated, short):
    assert (envs.task(name), envs.evaluated(name), envs.short(name)) == (task, evaluated, short)


@pytest.mark.parametrize(
    "prefix",
    [
        "without-velocities/",
        "with-last-step/without-velocities/",
        "timed/signals-cost,x_velocity/without-velocities/",
    ],
)
def test_prefixes_of_a_task_whose_presets_it_has(prefix):
    name = f"{prefix}async/Hopper-v5"
    assert (envs.task(name), envs.evaluated(name)) == ("Hopper-v5", f"{prefix}Hopper-v5")
    assert envs.short(f"{prefix}Hopper-v5") == f"{prefix}Hopper-v5".replace("/", "-")
    assert envs.code_of(f"{prefix}mine.py:Env") == "mine.py"
    assert envs.is_compiled(f"{prefix}gymnax/CartPole-v1")
    assert not envs.is_compiled(name)


def test_a_name_with_the_time():
    assert envs.with_time("Hopper-v5") == envs.with_time("timed/Hopper-v5") == "timed/Hopper-v5"


def test_envpool_says_what_it_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(
        ValueError,
        match=r"'envpool/' environments need .* installed: pip install 'rljax-suite\[envpool\]'",
    ):
        envs.make_hosted("envpool/Hopper-v5", 1)
