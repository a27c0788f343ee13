"""The options of all commands and their defaults."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from rljax import cli
from rljax.cli import parsing, training
from rljax.cli.main import COMMANDS, USAGE, _command
from rljax.learning.settings import Settings
from rljax.runs import records
from tests.cli import commands

# What each command's --help lists.
OPTIONS = {
    "train": """
        env None, wrap repeatable, frame-stack 1,
        steps 1000000, data None, preset None, then-online 0,
        offline-share 0.5,
        online repeatable, base None, weights uniform, weights-alpha 0.1, weights-share 0.1,
        from None, from-parts, without-updates False, data-on-host False, seed 0, seeds 1,
        grid repeatable, learners-per-launch None, dry-run False, ray None, ray-cpus 1, out None,
        log-every 1000, eval-every 10000, eval-episodes 10, eval-env None, checkpoint-every None,
        keep-checkpoints 2, tensorboard False, wandb None, wandb-group None, wandb-name None,
        wandb-tags, mlflow None, trackio None, chart-names rljax, stop-at-return None,
        film-every None, quiet False, coordinator None, num-processes None,
        process-id None, join-timeout 300, trust False
    """,
    "sweep": """
        env None, wrap repeatable, frame-stack 1,
        steps 1000000, data None, preset None, method tpe, trials 64,
        population 16,
        tuning-seeds 0 1 2, test-seeds 100 101 102 103 104 105 106 107 108 109, space None,
        every None, eta 3, min-steps None, search-seed 0, storage None, study sweep, limits,
        learners-per-launch None, ray None, ray-cpus 1, out None, log-every 1000, eval-every 10000,
        eval-episodes 10, eval-env None, checkpoint-every None, quiet False
    """,
    "resume": """
        steps None, then-online None, offline-share None, accept-changed-records False, ray None,
        ray-cpus 1, quiet False, coordinator None, num-processes None, process-id None,
        join-timeout 300, trust False
    """,
    "extract": "learners required, out None, trust False",
    "eval": "episodes 10, env None, best False, seed 0, hold, trust False",
    "play": (
        "learner 0, best False, seed 0, max-steps 1000, episodes 1, output None, terminal False, "
        "window False, trust False"
    ),
    "plot": "output None, signal None, metric None",
    "report": "output report.html, at None",
    "select": "trust False, validation None, discount 0.99",
    "diagnose": "",
    "doctor": "",
    "watch": "once False, every 2.0",
    "list": "",
    "new": "from sac",
    "data list": "",
    "data info": "clip-actions False, action-bounds None, output None",
    "data check": "clip-actions False, action-bounds None",
    "data convert": "clip-actions False, action-bounds None, env None, top 1.0, discount 1.0",
    "data join": "mark-parts False",
    "data corrupt": """
        clip-actions False, action-bounds None, what required, how random, rate 0.3, scale 1.0,
        seed 0, attacker None, learner 0, trust False
    """,
    "data correct": "hidden 256 256, updates 10000, reward-limit 1.0, seed 0",
    "data record": "steps None, from policy, learner 0, best False, envs None, seed 0, "
    + "length None, trust False",
}
WRITE = {
    "train": "out",
    "sweep": "out",
    "extract": "out",
    "play": "output",
    "plot": "output",
    "report": "output",
}
WRITE["data info"] = "output"


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit:
        cli.main([*command.split(), "--help"])
    assert not exit.value.code
    return capsys.readouterr().out


def listed(text: str) -> dict[str, str]:
    """Options and defaults in a help; "required" or "repeatable" where there is no default."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        words = line.strip("│╭─╮╰╯ ")
        if words.startswith("--"):
            found[words.split()[0][2:]] = words
        elif found and words:
            found[list(found)[-1]] += f" {words}"
    ends = r"\((?:default: ?)?([^()]*)\)$"
    return {
        name: match[1].strip() for name, words in found.items() if (match := re.search(ends, words))
    }


@pytest.mark.parametrize("command", OPTIONS)
def test_help_explains_the_options_and_their_defaults(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(command, capsys)
    pairs = [
        option.strip().partition(" ") for option in OPTIONS[command].split(",") if option.strip()
    ]
    assert listed(text) == {name: default for name, _, default in pairs}
    unexplained = r"--([a-z-]+) (?:\S+ )?\((?:default|required|repeatable)"
    assert not re.findall(unexplained, " ".join(text.replace("│", " ").split()))


def test_train_has_an_option_for_each_setting() -> None:
    options_of_train = {field.name: field.default for field in dataclasses.fields(training.Train)}
    settings = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert set(settings) - set(options_of_train) == {"schedule"}
    assert (options_of_train["online"], settings["online"]) == ((), None)
    for name in set(settings) - {"schedule", "agent", "env", "seeds", "online"}:
        assert options_of_train[name] == settings[name], name


@pytest.mark.parametrize(("command", "first"), WRITE.items())
def test_help_shows_both_names_of_the_output(
    command: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    second = {"out": "output", "output": "out"}[first]
    assert re.search(rf"--{first} \S+, --{second} ", help_of(command, capsys))


@pytest.mark.parametrize("spelling", ["--out", "--output"])
@pytest.mark.parametrize(
    ("words", "function"),
    [
        ("train sac --env rljax/Pendulum", "runs.run.train"),
        ("sweep sac --env rljax/Pendulum", "tuning.sweeps.begin"),
        ("extract run --learners 0", "runs.extract.extract"),
        ("play run", "runs.policies.videos.play"),
        ("plot run", "analysis.learning_curves.plot"),
        ("report run", "analysis.report.write"),
    ],
)
def test_out_and_output_are_one_option(
    words: str, function: str, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(
        f"rljax.{function}", lambda *args, **kwargs: called.extend([*args, *kwargs.values()]) or ""
    )
    cli.main([*words.split(), spelling, "there.png"])
    assert Path("there.png") in called


@pytest.mark.parametrize(
    "words",
    [
        "train sac --env rljax/Pendulum --out a --output b",
        "train sac --env rljax/Pendulum --output=a --out=a",
        "extract run --learners 0 --out a --output b",
        "plot run --out a --output b",
        "data info file.npz --output a.png --out b.png",
    ],
)
def test_both_names_of_the_output_are_refused(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "error: --out and --output are two names of one option: give one of them.\n"
    assert commands.refused(words.split(), capsys) == message


def test_steps_may_be_written_with_an_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    called: Any = {}
    monkeypatch.setattr("rljax.runs.run.train", lambda **what: called.update(what))
    steps = "--steps 1e6 --eval-every=3e5 --checkpoint-every 1_000_000 --then-online 2.5e5"
    cli.main(f"train sac --env rljax/Pendulum {steps} --config.warmup-steps 1e4".split())
    names = ("steps", "eval_every", "checkpoint_every", "then_online")
    assert [called[name] for name in names] == [1_000_000, 300_000, 1_000_000, 250_000]
    assert called["config"].warmup_steps == 10_000


@pytest.mark.parametrize(
    "words",
    [
        "train sac --env rljax/Pendulum --steps 1.5",
        "train sac --env rljax/Pendulum --eval-every 1.5",
        "train sac --env rljax/Pendulum --config.warmup-steps 1.5",
        "sweep sac --env rljax/Pendulum --min-steps 1.5",
        "resume run --steps 1.5",
        "play run --max-steps 1.5",
        "report run --at 1.5",
        "data record run file.npz --steps 1.5",
    ],
)
def test_half_a_step_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = " ".join(commands.refused(words.split(), capsys).replace("│", " ").split())
    assert "'1.5' is not a whole number, such as 300000, 300_000 or 3e5." in printed


def test_help_explains_each_hyperparameter(capsys: pytest.CaptureFixture[str]) -> None:
    printed = " ".join(help_of("train sac", capsys).split())
    assert "usage: rljax train sac" in printed
    assert "--config.discount FLOAT" in printed
    assert "gamma;" in printed
    assert re.search(r"references \[1\] \w.* \[2\] \w", printed)


def test_help_shows_the_presets_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(default: 0.001)" in help_of("train sac --env Pendulum-v1", capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [["--config.tau=0.25"], ["--config.tau", "0.25"], ["--config.target-rate", "0.25"]]
)
def test_settings_may_bear_the_names_of_other_suites(flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    cli.main(commands.train("sac", "rljax/Pendulum", "--steps", 100, "--out", out, *flags))
    assert records.read_config(out)["config"]["target_rate"] == 0.25


def test_an_encoder_is_a_choice_or_a_class_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "td3", "--env", "Pendulum-v1", "--config.encoder"]
    error = " ".join(commands.refused([*words, "natur"], capsys).replace("│", "").split())
    assert "'natur' is no choice, and no class in a file, as mine.py:Encoder" in error
    error = commands.refused([*words, "mine.py:Encoder"], capsys)
    assert "--config.encoder mine.py:Encoder: there is no file 'mine.py'" in error
    with pytest.raises(SystemExit):
        cli.main(["train", "td3", "--help"])
    assert "{auto,nature,impala,small,efficient}|FILE:CLASS" in capsys.readouterr().out


def test_agent_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    printed = commands.refused(["train", "--env", "Hopper-v5", "sac"], capsys)
    assert "the agent comes first: rljax train sac --env Hopper-v5" in printed


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--total-timesteps", "no option --total-timesteps. Here it is --steps"),
        ("--batch-size", "no option --batch-size. Here it is --config.batch-size."),
        ("--gamma=0.9", "no option --gamma. Here it is --config.discount."),
        ("--config.policy-frequency", "Here it is --config.policy-delay: updates for each"),
    ],
)
def test_flags_of_other_libraries_are_named_as_they_are_here(
    flag: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in commands.refused(["train", "td3", flag, "1"], capsys)


def test_a_switch_may_be_set_to_what_it_is() -> None:
    words = ["ppo", "--env", "rljax/LightsOut-3x3", "--config.no-clip-values"]
    for flag, value in (("--config.shared", True), ("--config.no-shared", False)):
        _, config = parsing.parse_with_agent(training.Train, [*words, flag], "train")
        assert (config.shared, config.clip_values) == (value, False)


def test_the_commands_are_those_of_the_first_help() -> None:
    named = re.findall(r"^  (\w+)", USAGE, re.MULTILINE)
    assert set(named) == set(COMMANDS)
    assert all(callable(_command(name)) for name in named)
