"""Each agent learns a task that has no preset with its defaults, in about a minute of one core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.agents import stream_td
from rljax.learning import registry
from rljax.runs import records, run
from rljax.runs.policies import loading
from tests.environments import reach

# Environment steps.
ONLINE = {
    "sac": 13_000,
    "td3": 29_000,
    "dsact": 13_000,
    "sequence_rl": 11_000,
    "sac_discrete": 13_000,
    "ppo": 80_000,
    "dqn": 60_000,
    "pqn": 160_000,
    "r2d2": 60_000,
    "stream_ac": 100_000,
    "stream_q": 100_000,
    "stream_sarsa": 100_000,
}
DISCRETE = {"cql_discrete", "dqn", "pqn", "r2d2", "sac_discrete", "stream_q", "stream_sarsa"}
FROM_DATA = {  # updates
    "awac": 800,
    "bc": 1_500,
    "td3_bc": 3_000,
    "rebrac": 250,
    "iql": 2_000,
    "riql": 2_000,
    "fdvl": 300,
    "cql": 500,
    "cql_discrete": 10_000,
    "edac": 2_000,
    "dql": 1_500,
    "ofql": 1_000,
    "ifql": 500,
    "fql": 800,
    "dt": 300,
    "rvs": 800,
}
OTHERS = {
    "bro",
    "calql",
    "crl",
    "crl_online",
    "crossq",
    "dppo",
    "dpt",
    "dsrl",
    "dsrl_sac",
    "expo",
    "famo2o",
    "fastsac",
    "fasttd3",
    "flashsac",
    "fqe",
    "gcbc",
    "gciql",
    "gcivl",
    "h2o",
    "hiql",
    "hnpg",
    "idql",
    "moorl",
    "mpo",
    "qam",
    "qc",
    "qrl",
    "qsm",
    "recoil",
    "reinflow",
    "resfit",
    "ro2o",
    "simbav2",
    "stream_td",
    "td7",
    "tqc",
    "xqc",
}  # which have tests of their own
# Which need a cost, and have tests of their own.
COSTLY = {"cpo", "ppo_lagrangian", "sac_lagrangian"}
# The data's mean is -9, that of uniform actions -14, the best -1 or -2.
LEARNT = -8.0
CHUNKS = {"chunk_length": 5}


# An agent in no table learns with these. Those that ask for a cost, goals, parts of data or another
# run's policy, which the task does not give, have tests of their own.
DEFAULTS = {"replay": 30_000, "rollout": 160_000, "stream": 100_000, "dataset": 3_000}


def unlisted() -> dict[str, str]:
    """The kinds of experience of agents in no table, where the task can give it."""
    kinds = {}
    for name in set(registry.names()) - {*ONLINE, *FROM_DATA, *OTHERS, *COSTLY}:
        module: Any = registry.load_agent(name)
        declared = module.experience(module.Config())
        more = (declared.signals, declared.labels, "goals" in declared.observes)
        if not any((*more, hasattr(module, "use_base"), getattr(declared, "beside_data", False))):
            kinds[name] = declared.kind
    return kinds


UNLISTED = unlisted()
ONLINE |= {name: DEFAULTS[kind] for name, kind in UNLISTED.items() if kind != "dataset"}
FROM_DATA |= {name: DEFAULTS[kind] for name, kind in UNLISTED.items() if kind == "dataset"}
DISCRETE |= {name for name in UNLISTED if "require_discrete(" in registry.source(name)}


def environment(agent: str) -> str:
    return f"{reach.__file__}:{'ReachDiscrete' if agent in DISCRETE else 'Reach'}"


def final(out: Path) -> float:
    return records.read_summary(out)["final"]["mean"]


def train(agent: str, steps: int, tmp_path: Path, **settings: Any) -> Path:
    """Learners, two by default, evaluated at the end."""
    out = tmp_path / "run"
    settings = {"env": environment(agent), "eval_episodes": 30, "seeds": 2} | settings
    return run.train(agent, steps=steps, out=out, eval_every=steps, **settings)


def journeys(tmp_path: Path) -> str:
    return str(reach.journeys(tmp_path / "reach.npz"))


@pytest.mark.parametrize("task", reach.LEVELS)
def test_levels_are_those_of_the_task(task: str) -> None:
    generator = np.random.default_rng(0)
    position, goal = generator.uniform(-1, 1, (2, 20_000))
    for uniform, level in zip((True, False), reach.LEVELS[task], strict=True):
        at, total = position, np.zeros(20_000)
        for _ in range(reach.LIMIT):
            action = np.clip((goal - at) / reach.STRIDE, -1, 1)
            if uniform:
                action = generator.uniform(-1, 1, 20_000)
            if task == "ReachDiscrete":
                action = generator.integers(-1, 2, 20_000) if uniform else np.round(action)
            at = reach.moved(at, action, np)
            total -= np.abs(at - goal)
        assert total.mean() == pytest.approx(level, abs=0.15)


def test_tables_name_agents_that_there_are() -> None:
    assert set(ONLINE) | set(FROM_DATA) | OTHERS | COSTLY <= set(registry.names())


def test_no_preset_applies() -> None:
    for agent in (*ONLINE, *FROM_DATA, *sorted(OTHERS)):
        module: Any = registry.load_agent(agent)
        assert registry.preset(agent, module, environment(agent), "reach.npz") == module.Config()


@pytest.mark.learn
@pytest.mark.parametrize("agent", ONLINE)
def test_defaults_learn_in_an_environment(agent: str, tmp_path: Path) -> None:
    assert final(train(agent, ONLINE[agent], tmp_path)) >= LEARNT


@pytest.mark.learn
@pytest.mark.parametrize("agent", FROM_DATA)
def test_defaults_learn_from_data(agent: str, tmp_path: Path) -> None:
    recorded = reach.choices if agent in DISCRETE else reach.journeys
    data = str(recorded(tmp_path / "reach.npz"))
    assert final(train(agent, FROM_DATA[agent], tmp_path, data=data)) >= LEARNT


@pytest.mark.learn
@pytest.mark.parametrize("agent", ["bc", "iql"])
def test_defaults_learn_from_choices(agent: str, tmp_path: Path) -> None:
    """Half of the actions are uniform; the mean return is -5.0."""
    data, env = str(reach.choices(tmp_path / "reach.npz")), f"{reach.__file__}:ReachDiscrete"
    assert final(train(agent, 1_500, tmp_path, env=env, data=data)) >= -3.2


@pytest.mark.learn
@pytest.mark.parametrize(
    ("agent", "smaller"),
    [
        pytest.param("qc", {"num_candidates": 8}, id="qc"),
        pytest.param("qam", {"num_critics": 2}, id="qam"),
        pytest.param("dsrl", {"num_critics": 2}, id="dsrl"),
        pytest.param("qsm", {"num_critics": 2}, id="qsm"),
        pytest.param("expo", {"num_critics": 4}, id="expo"),
        pytest.param("ifql", {"num_candidates": 8, **CHUNKS}, id="ifql-chunks"),
        pytest.param("rebrac", {"critic_penalty": 0.0, **CHUNKS}, id="rebrac-chunks"),
        pytest.param("idql", {"critic_hidden": None, "num_candidates": 16}, id="idql"),
    ],
)
def test_defaults_learn_with_tuned_and_chosen_generative_policies(
    agent: str, smaller: dict[str, Any], tmp_path: Path
) -> None:
    """In networks of an eighth of the default widths and a quarter of their batches."""
    smaller |= {"hidden": (64, 64, 64), "batch_size": 64}
    out = train(agent, 1_500, tmp_path, data=journeys(tmp_path), config=smaller)
    assert final(out) >= LEARNT


@pytest.mark.learn
@pytest.mark.parametrize(
    ("agent", "base", "config"),
    [
        pytest.param("dsrl", "qc", {"decoder": "base", "num_updates": 2}, id="dsrl"),
        pytest.param("dsrl_sac", "qc", {"num_updates": 2}, id="dsrl_sac"),
        pytest.param("resfit", "bc", {"residual_scale": 0.5, "critic_updates": 1_000}, id="resfit"),
    ],
)
def test_defaults_improve_another_runs_policy(
    agent: str, base: str, config: dict[str, Any], tmp_path: Path
) -> None:
    """In small networks, after a short warm-up; the base plays about as the data do, at -9."""
    small = {"hidden": (64, 64), "batch_size": 64}
    clone = {"num_candidates": 1, "chunk_length": 1} if base == "qc" else {}
    data = journeys(tmp_path)
    first = train(base, 1_000, tmp_path / "base", data=data, config=small | clone)
    config |= small | {"warmup_steps": 1_000, "num_critics": 2}
    out = train(agent, 4_000, tmp_path, base=str(first), config=config)
    assert final(out) >= max(LEARNT, final(first) + 1.0)


@pytest.mark.learn
@pytest.mark.parametrize("is_cloned", [False, True])
def test_defaults_learn_with_noise_in_the_steps_of_a_flow(is_cloned: bool, tmp_path: Path) -> None:
    """In an eighth of the default widths. The flow is fresh, or a clone that plays as the data."""
    small, taken, level = {"hidden": (64, 64), "critic_hidden": (64, 64)}, {}, LEARNT
    if is_cloned:
        clone = {"hidden": (64, 64), "batch_size": 64, "num_candidates": 1, "chunk_length": 1}
        data = journeys(tmp_path)
        first = train("qc", 1_000, tmp_path / "clone", data=data, config=clone)
        taken = {"from_run": str(first), "from_parts": ("actor.flow=actor",)}
        level = max(LEARNT, final(first) + 1.0)
    steps = 60_000 if is_cloned else 120_000
    assert final(train("reinflow", steps, tmp_path, config=small, **taken)) >= level


@pytest.mark.learn
def test_defaults_improve_a_cloned_denoiser(tmp_path: Path) -> None:
    """In a quarter of the default widths; the clone plays as the data, at -9. Ratios have the
    largest of the authors' limits, with which a third of the steps is enough.
    """
    small: dict[str, Any] = {"hidden": (64, 64)}
    clone = {"denoising_steps": 20, "noising": "cosine", "num_candidates": 1, "batch_size": 64}
    clone |= {"value_weight": 0.0, "improvement": "one_step"}
    first = train("dql", 1_000, tmp_path / "clone", data=journeys(tmp_path), config=small | clone)
    taken = {"from_run": str(first), "from_parts": ("actor", "base=actor")}
    config = small | {"critic_hidden": (64, 64), "clip_ratio": 0.1, "clip_first": 0.1}
    out = train("dppo", 20_000, tmp_path, config=config, **taken)
    assert final(out) >= final(first) + 2.0


@pytest.mark.learn
@pytest.mark.parametrize(
    ("agent", "updates"),
    [
        *((agent, 2_000) for agent in ("crl", "gcbc", "gciql", "qrl")),
        *((agent, 1_000) for agent in ("gcivl", "hiql")),
    ],
)
def test_defaults_learn_to_reach_goals_from_walks(agent: str, updates: int, tmp_path: Path) -> None:
    """Networks and batches are smaller than the defaults, which take ten times as long."""
    smaller: dict[str, Any] = {"hidden": (128, 128), "batch_size": 256}
    smaller |= {"latent_size": 64} if agent in ("crl", "qrl") else {}
    data = str(reach.walks(tmp_path / "reach.npz"))
    out = train(agent, updates, tmp_path, env="none", data=data, config=smaller)
    act, generator = rljax.load(out), np.random.default_rng(1)
    position, goal = generator.uniform(-1, 1, (2, 200, 2)).astype(np.float32)
    before = np.linalg.norm(position - goal, axis=1).mean()
    for _ in range(reach.LIMIT):
        action = act(np.concatenate([position, goal], axis=1))
        position = reach.moved(position, action, np).astype(np.float32)
    assert np.linalg.norm(position - goal, axis=1).mean() < before / 2


@pytest.mark.learn
def test_defaults_learn_from_data_with_calibrated_critics(tmp_path: Path) -> None:
    """Cal-QL's networks and candidates are fewer than the defaults, which take minutes."""
    smaller = {"hidden": (128, 128), "critic_hidden": (128, 128), "num_actions": 4}
    out = train("calql", 1_000, tmp_path, data=journeys(tmp_path), config=smaller)
    assert final(out) >= LEARNT


@pytest.mark.learn
def test_defaults_learn_with_truncated_quantiles(tmp_path: Path) -> None:
    """TQC has fewer and smaller critics than by default, which take an hour."""
    out = train("tqc", 13_000, tmp_path, config={"critic_hidden": (128, 128), "num_critics": 2})
    assert final(out) >= LEARNT


@pytest.mark.learn
def test_defaults_learn_within_bounds_of_divergences(tmp_path: Path) -> None:
    """MPO's networks and batches are a quarter of the default sizes, which take an hour."""
    out = train("mpo", 40_000, tmp_path, config={"hidden": (64, 64), "batch_size": 64})
    assert final(out) >= LEARNT


@pytest.mark.learn
@pytest.mark.parametrize("agent", ["crossq", "xqc"])
def test_defaults_learn_with_batch_normalisation(agent: str, tmp_path: Path) -> None:
    """In networks of a tenth of the default widths, which take hours."""
    smaller = {"hidden": (32, 32), "critic_hidden": (64, 64)}
    assert final(train(agent, 7_000, tmp_path, config=smaller)) >= LEARNT


@pytest.mark.learn
@pytest.mark.parametrize("is_offline", [False, True])
def test_defaults_learn_with_embeddings(is_offline: bool, tmp_path: Path) -> None:
    """In small networks. Here returns depend most on where an episode begins, so that its best
    policies would be those of the luckiest episodes: no checkpoints.
    """
    smaller = {"hidden": (64,) * 3, "encoder_hidden": (64, 64), "embedding_size": 64}
    if is_offline:
        data = journeys(tmp_path)
        out = train("td7", 3_000, tmp_path, data=data, config=smaller | {"offline": True})
    else:
        out = train("td7", 29_000, tmp_path, config=smaller | {"checkpoints": False})
    assert final(out) >= LEARNT


@pytest.mark.learn
@pytest.mark.parametrize(("agent", "steps"), [("bro", 3_500), ("simbav2", 7_000)])
def test_defaults_learn_with_one_width_for_all_blocks(
    agent: str, steps: int, tmp_path: Path
) -> None:
    """In blocks of an eighth of the default widths, which take hours."""
    smaller = {"hidden": (32,), "critic_hidden": (64,)}
    assert final(train(agent, steps, tmp_path, config=smaller)) >= LEARNT


@pytest.mark.learn
def test_defaults_learn_in_residual_blocks(tmp_path: Path) -> None:
    """In blocks and batches of a quarter of the default sizes, which take hours."""
    smaller = {"hidden": (32, 32), "critic_hidden": (64, 64), "batch_size": 128}
    assert final(train("flashsac", 12_000, tmp_path, config=smaller)) >= LEARNT


@pytest.mark.learn
@pytest.mark.parametrize(("agent", "batch_size"), [("fasttd3", 128), ("fastsac", 64)])
def test_defaults_learn_with_many_environments(agent: str, batch_size: int, tmp_path: Path) -> None:
    """Networks are an eighth of the default sizes, and batches smaller: those take an hour."""
    smaller = {"hidden": (64, 32), "critic_hidden": (128, 64), "batch_size": batch_size}
    assert final(train(agent, 60_000, tmp_path, config=smaller)) >= LEARNT


@pytest.mark.learn
def test_defaults_learn_from_rollouts_beside_data(tmp_path: Path) -> None:
    assert final(train("hnpg", 24_000, tmp_path, data=journeys(tmp_path))) >= LEARNT


@pytest.mark.learn
def test_defaults_learn_the_values_of_uniform_actions(tmp_path: Path) -> None:
    """Values correlate with returns almost as well as the distance to the goal, for the median of
    eight learners: single ones differ, by 0.65 to 0.98 of it.
    """
    out = train("stream_td", 100_000, tmp_path, seeds=8)
    observation, returns = reach.uniform_walks(4_000, discount=0.99)
    policies = loading.load_all(out)
    best = np.corrcoef(-np.abs(observation[:, 0] - observation[:, 1]), returns)[0, 1]
    correlations = []
    for learner in range(8):
        state, config = jax.tree.map(
            lambda x, learner=learner: x[learner], (policies.state, policies.config)
        )
        value = np.asarray(stream_td.values(state.state, state.see(observation), config))
        correlations.append(np.corrcoef(value, returns)[0, 1])
    assert np.median(correlations) > 0.85 * best
    assert min(correlations) > 0.4 * best
