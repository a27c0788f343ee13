"""Presets beside authors' files: each kind of file is read from a tiny one, and every difference
is reported, with its reason where the agent's texts hold it.
"""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path
from typing import Any

import pytest

from rljax.learning import registry
from scripts.checks import compare_presets
from scripts.checks.authors import acme, readers, simba
from scripts.checks.authors.shared import (
    DoesNotApply,
    Intended,
    Settings,
    Source,
    affine,
    layers,
    log_of,
)


def written(folder: Path, name: str, text: str) -> Path:
    """A file of a fake checkout."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# Readers


def test_yaml_reads_numbers_that_yaml_takes_for_text(tmp_path):
    path = written(tmp_path, "a.yaml", "lr: 3e-4\nname: CQL\nnested:\n  low: -.inf\n  use: true\n")
    read = readers.flat(readers.yaml_file(path))
    assert read == {"lr": 3e-4, "name": "CQL", "nested.low": -float("inf"), "nested.use": True}


def test_options_of_argparse_and_of_absl(tmp_path):
    path = written(
        tmp_path,
        "main.py",
        """
import torch  # is not imported: nothing runs
raise SystemExit("nothing runs")
parser.add_argument("-e", "--env_name", default="hopper", type=str)
parser.add_argument("--max-steps", default=int(1e6), type=int)
parser.add_argument("--rate", default="3e-4")
parser.add_argument("--normalise", action="store_true")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
flags.DEFINE_integer('batch_size', 256, 'Mini batch size.')
flags.DEFINE_float("temp", 2 * 0.5, "Temperature")
""",
    )
    assert readers.arguments(path) == {
        "env_name": "hopper",
        "max-steps": 1_000_000,
        "rate": 3e-4,
        "normalise": False,
        "batch_size": 256,
        "temp": 1.0,
    }


CODE = """
table = {"hopper": {"lr": 1e-3, "eta": -1.0}, "walker": {"lr": 3e-4, "eta": 2}}
_envs = {"Run": partial(walker.Walk, speed=2), "Stand": walker.Stand}

@dataclass
class Train:
    width: int = 256  # units
    rates: Tuple[float, ...] = (1e-3, 3e-4)
    device: str = "cuda" if torch.cuda.is_available() else "cpu"

class Learner(object):
    def __init__(self, seed, tau: float = 0.005, clip=np.inf, *, decay: str = "cosine"):
        self.actor = optim.Adam(self.parameters(), lr=1e-4)
        self.critic = optim.Adam(self.parameters(), lr=3e-4, betas={"first": 0.9})

net = nn.Sequential(nn.Conv2d(4, 16, 3, stride=1), nn.Conv2d(16, 32, 3, stride=2))
"""


def test_defaults_in_code(tmp_path):
    path = written(tmp_path, "code.py", CODE)
    assert readers.constant(path, "table")["hopper"] == {"lr": 1e-3, "eta": -1.0}
    assert readers.keys(path, "_envs") == ["Run", "Stand"]
    assert readers.dataclass(path, "Train") == {"width": 256, "rates": (1e-3, 3e-4)}
    expected = {"tau": 0.005, "clip": float("inf"), "decay": "cosine"}
    assert readers.parameters(path, "Learner.__init__") == expected
    assert readers.keywords(path, "Adam") == {"lr": 1e-4}
    assert readers.keywords(path, "Adam", 1) == {"lr": 3e-4, "betas.first": 0.9}
    assert readers.convolutions(path) == [[16, 3, 1], [32, 3, 2]]
    readers.says(path, "class Learner(object):   def __init__")
    with pytest.raises(ValueError, match="no longer says"):
        readers.says(path, "class Teacher")
    with pytest.raises(ValueError, match="does not call SGD"):
        readers.keywords(path, "SGD")
    with pytest.raises(ValueError, match=r"has no Learner\.update"):
        readers.parameters(path, "Learner.update")


CONFIG = """
def get_config(name="hopper", updates=None):
    config = ml_collections.ConfigDict(type_safe=False)
    config.lr = 3e-4
    config.range = (8.0, 14.0)
    config.encoder = ml_collections.config_dict.placeholder(str)
    config.path = os.path.basename(__file__)
    config.network = ConfigDict({"hidden": [256, 256], "norm": False})
    config.base = base_config.get_config()
    if name.startswith("walker") and name not in ("walker-easy",):
        config.network.norm = True
    elif name == "ant":
        config.rate = {"ant": 0.5}[name.split("-")[0]]
    else:
        raise ValueError(name)
    if updates is not None:
        config.update(ConfigDict(updates).copy_and_resolve_references())
    return config
"""


def test_configurations_are_computed_from_their_text(tmp_path):
    path = written(tmp_path, "config.py", CONFIG)
    functions = {"base_config.get_config": lambda: {"discount": 0.99}}
    walker = readers.flat(readers.config(path, functions=functions, name="walker-run"))
    assert walker == {
        "lr": 3e-4,
        "range": (8.0, 14.0),
        "encoder": None,
        "network.hidden": [256, 256],
        "network.norm": True,
        "base.discount": 0.99,
    }
    updates = {"network": {"hidden": [512]}, "lr": 1e-4}
    ant = readers.flat(readers.config(path, name="ant", updates=updates))
    assert (ant["rate"], ant["lr"], ant["network.hidden"]) == (0.5, 1e-4, [512])
    assert ant["network.norm"] is False
    with pytest.raises(ValueError, match="it raises"):
        readers.config(path)


def test_a_function_may_change_its_argument(tmp_path):
    path = written(
        tmp_path,
        "config.py",
        "def change(Train):\n    if Train.mode == 'random':\n        Train.sigma = 0.1\n",
    )
    changed = readers.config(path, "change", Train={"mode": "random", "sigma": 1.0})
    assert changed == {"mode": "random", "sigma": 0.1}


def test_a_condition_that_cannot_be_read_is_an_error(tmp_path):
    path = written(
        tmp_path, "config.py", "def f(x):\n    if os.cpu_count() > 2:\n        x.y = 1\n"
    )
    with pytest.raises(ValueError, match="no value of the condition"):
        readers.config(path, "f", x={})


def test_commands_of_scripts_and_pages(tmp_path):
    path = written(
        tmp_path,
        "run.sh",
        """
env=pen-binary-v0
# env=door-binary-v0
python train.py --env $env --lr=1e-3 \\
    --config.hidden="(256, 256)" --batch_size $((256 * 4)) --fast --seed=$i &
XLA=0 python -m scripts.train --name x  # a comment
python other.py --env y
""",
    )
    assert readers.commands(path, "train.py") == [
        {
            "env": "pen-binary-v0",
            "lr": 1e-3,
            "config.hidden": (256, 256),
            "batch_size": 1024,
            "fast": True,
            "seed": "$i",
        }
    ]
    assert readers.commands(path, "scripts.train") == [{"name": "x"}]


def test_bindings_of_gin(tmp_path):
    text = """import dopamine
Agent.gamma = 0.99
Agent.update_horizon = 1#3
Agent.kind = 'uniform'  # or 'prioritized'
Agent.network = @networks.Network
create_optimizer = @agent.create_optimizer
module.Buffer.size = 10_000
Other.gamma = 0.5
"""
    path = written(tmp_path, "agent.gin", text)
    assert readers.gin(path, "Agent", "module.Buffer") == {
        "gamma": 0.99,
        "update_horizon": 1,
        "kind": "uniform",
        "network": "@networks.Network",
        "size": 10_000,
    }


def test_calls_in_a_notebook(tmp_path):
    text = """train_fn = {
  'ant': functools.partial(ppo.train, num_envs=4096, reward_scaling=10),
  'hopper': functools.partial(sac.train, batch_size=512),
}[env_name]
"""
    cells = [{"source": ["x = 1"]}, {"source": text.splitlines(keepends=True)}]
    path = written(tmp_path, "training.ipynb", json.dumps({"cells": cells}))
    calls = readers.notebook(path, "train_fn")
    assert readers.partial(calls["hopper"]) == ("sac.train", {"batch_size": 512})
    assert readers.partial(calls["ant"])[1] == {"num_envs": 4096, "reward_scaling": 10}


def test_conversions():
    theirs = Settings({"width": 64, "depth": 2, "scale": 10.0, "bias": -5, "std": 1e-5})
    assert layers("width", "depth")(theirs) == layers("width", 2)(theirs) == (64, 64)
    assert affine("scale", "bias")(theirs) == "times_10_minus_5"
    assert affine("width", "bias")(theirs) == "64 r + -5"
    assert compare_presets.same(-11.5, log_of("std")(theirs))
    assert theirs.used == set(theirs)


@pytest.mark.parametrize(
    ("ours", "theirs", "equal"),
    [
        ([256, 256], (256, 256), True),
        ([256, 256], (256,), False),
        (1, 1.0, True),
        (3e-4, 0.0003, True),
        (0.99, 0.995, False),
        (True, 1, False),
        (None, 0.0, False),
        ("last", True, False),
        (compare_presets.ABSENT, None, True),
        (compare_presets.ABSENT, 0.5, False),
    ],
)
def test_values_are_equal(ours, theirs, equal):
    assert compare_presets.same(ours, theirs) is equal


# Comparisons: ours is IQL, theirs a fake checkout

YAML = "env: {}\nlr: {}\nbeta: {}\nseed: 0\n"
REASON = "The weight is bounded"  # words of docs/agents/iql.md


def tasks(checkout: Path) -> dict[str, Any]:
    """The fake checkout's files."""
    values = map(readers.yaml_file, sorted(checkout.glob("*.yaml")))
    return {f"d4rl/{each['env']}": each for each in values}


def source(*intended: Intended, **fields: Any) -> Source:
    """A source of the fake checkout."""
    rules = {"actor_lr": "lr", "inverse_temperature": "beta", **fields}
    return Source("iql", "theirs", "*.yaml", tasks, rules, intended)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Two data sets: one as ours, one with another beta than our 3."""
    folder = tmp_path / "theirs"
    written(folder, "hopper.yaml", YAML.format("hopper-medium-v2", 3e-4, 3.0))
    written(folder, "walker.yaml", YAML.format("walker2d-medium-v2", 3e-4, 5))
    return folder


def test_differences_are_found_and_explained_by_words_that_stand_somewhere(checkout):
    compared = compare_presets.compare(source(), checkout)
    assert (compared.tasks, compared.compared, compared.unread) == (2, 4, ["env", "seed"])
    (different,) = compared.unexplained
    assert different == ("d4rl/walker2d-medium-v2", "inverse_temperature", 3.0, 5, None)
    reasons = {
        Intended("inverse_*", "d4rl/walker2d-*", REASON): REASON,
        Intended("inverse_temperature", "d4rl/hopper-*", REASON): None,
        Intended("actor_lr", "*", REASON): None,
        Intended("inverse_temperature", "*", "words that stand nowhere"): None,
    }
    for intended, reason in reasons.items():
        (different,) = compare_presets.compare(source(intended), checkout).differences
        assert different.reason == reason


def test_critics_without_widths_of_their_own_have_the_actors():
    defaults = Source("mpo", "theirs", "*", tasks, {})
    module = registry.load_agent("mpo")
    assert module.Config().critic_hidden is None
    ours = compare_presets.resolved(defaults, module, "Hopper-v5")
    assert ours["critic_hidden"] == ours["hidden"] == [256, 256, 256]
    ours = compare_presets.resolved(defaults, module, "playground/CheetahRun")
    assert ours["critic_hidden"] == [512, 512, 256]


def test_a_rule_that_reads_nothing_is_an_error(checkout):
    with pytest.raises(ValueError, match="no task of theirs sets what discount is read from"):
        compare_presets.compare(source(discount="gamma"), checkout)

    def rule(theirs: Settings) -> Any:
        raise DoesNotApply

    assert compare_presets.compare(source(discount=rule), checkout).compared == 4


def test_command(monkeypatch, checkout, command, tmp_path, capsys):
    output = tmp_path / "presets"
    places = ("--checkouts", tmp_path, "--output", output)

    def ends(*sources: Source, options: tuple[str, ...] = ()) -> tuple[Any, str]:
        monkeypatch.setattr(compare_presets, "SOURCES", sources)
        with pytest.raises(SystemExit) as end:
            command(compare_presets, *places, *options)
        return end.value.code, capsys.readouterr().out

    code, text = ends(source())
    assert code == 1
    assert "2 tasks, 4 settings, 3 equal, 0 different on purpose, 1 different" in text
    assert " ! d4rl/walker2d-medium-v2: inverse_temperature 3.0, theirs 5" in text
    explained = source(Intended("inverse_temperature", "*", REASON))
    code, text = ends(explained, options=("--write",))
    assert code == 0
    assert f"theirs 5 ({REASON})" in text
    page = (output / "README.md").read_text()
    assert "| iql | theirs unknown, *.yaml | 2 | 4 | 3 | 1 | 0 |" in page
    assert "| all | | 2 | 4 | 3 | 1 | 0 |" in page
    (entry,) = json.loads((output / "presets.json").read_text())
    assert entry["different"][0]["tasks"] == ["d4rl/walker2d-medium-v2"]
    assert entry["without counterpart"] == ["env", "seed"]
    missing = explained._replace(repository="elsewhere")
    code, text = ends(missing, options=("--write",))
    assert code == 1
    assert "no checkout" in text
    later = (output / "README.md").read_text()
    assert later.startswith(page.rstrip())  # what was not compared again stays
    assert "no checkout" in later
    code, text = ends(source(discount="gamma"))
    assert code == 1
    assert "no task of theirs" in text


def test_a_script_overrides_the_files_of_settings(tmp_path):
    configs = tmp_path / "configs"
    written(configs, "flashSAC_base.yaml", "gamma: 0.99\nn_step: 1\nupdates: 3\n")
    written(configs, "agent/flashSAC.yaml", "gamma: ${gamma}\nsample_batch_size: 2\nlr: 3e-4\n")
    script = """
env_names=(
    "myo-reach"
    "myo-pose"
)
python train.py \\
    --overrides env.env_name=${env_name} \\
    --overrides agent.sample_batch_size=2_048 \\
    --overrides updates_per_interaction_step=1 \\
    --overrides gamma=0.95
"""
    written(tmp_path, "scripts/run.sh", script)
    names, values = simba.flashsac_settings(tmp_path, "run.sh")
    assert names == ["myo-reach", "myo-pose"]
    assert values == {
        "gamma": 0.95,
        "n_step": 1,
        "updates": 3,
        "sample_batch_size": 2_048,
        "lr": 3e-4,
    }
    written(tmp_path, "scripts/run.sh", script.replace("gamma", "other"))
    with pytest.raises(ValueError, match=r"'run\.sh' does not set gamma"):
        simba.flashsac_settings(tmp_path, "run.sh")


@pytest.mark.parametrize(
    ("period", "rate", "expected"), [(100, None, (1.0, 100)), (None, 0.01, (0.01, None))]
)
def test_targets_of_acme_are_copied_or_follow(period, rate, expected):
    theirs = Settings({"target_update_period": period, "target_update_rate": rate})
    rate_of: Any = acme.MPO["target_rate"]
    assert acme.MPO["target_every"] == "target_update_period"
    assert (rate_of(theirs), theirs["target_update_period"]) == expected


# The table itself, as far as it needs no checkout


def test_each_source_is_an_entry_of_its_own():
    places = [(each.label, each.repository, each.files) for each in compare_presets.SOURCES]
    assert len(set(places)) == len(places)
    assert {each.agent for each in compare_presets.SOURCES} <= set(registry.names())


@pytest.mark.parametrize(
    "source",
    [each for each in compare_presets.SOURCES if each.intended],
    ids=lambda source: f"{source.label}-{source.repository}",
)
def test_reasons_stand_in_the_texts_of_the_agent(source):
    sections = registry.presets(source.agent, source.variant)
    text = compare_presets.words(source.agent)
    for intended in source.intended:
        if intended.tasks == "*" or fnmatch.filter(sections, intended.tasks):
            assert readers.squeezed(intended.reason) in text
