"""Learning curves in one file."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import matplotlib.figure
import numpy as np
import pytest

from rljax.analysis import figures, learning_curves
from rljax.runs import records
from tests.helpers import run_folders

STEPS = [*range(0, 50_001, 10_000)]


def run(
    path,
    agent="sac",
    environment="Hopper-v5",
    seeds=(0, 1, 2),
    steps=STEPS,
    episodes=5,
    **described,
):
    budget, level = STEPS[-1], STEPS[-1] / 100
    return run_folders.write(
        path, agent, environment, seeds, steps, budget, level, episodes, **described
    )


@pytest.fixture
def panels(monkeypatch):
    """The panels drawn, by title."""
    drawn = {}
    save = matplotlib.figure.Figure.savefig

    def keep(figure, *arguments, **options):
        drawn.update({panel.get_title(): panel for panel in figure.axes if panel.get_title()})
        drawn["caption"] = figure.get_supxlabel()
        return save(figure, *arguments, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    return drawn


def legend(panel):
    return [text.get_text() for text in panel.get_legend().get_texts()]


def line(panel, label):
    return next(line for line in panel.get_lines() if line.get_label() == label)


def test_one_panel_per_environment_and_one_curve_per_agent(tmp_path, panels):
    paths = [
        run(tmp_path / agent / environment, agent, environment)
        for agent in ("sac", "td3")
        for environment in ("Hopper-v5", "brax/ant")
    ]
    output = learning_curves.plot(paths)
    assert output == paths[0] / "curve.png"
    assert output.read_bytes().startswith(b"\x89PNG")
    assert list(panels) == ["Hopper-v5", "brax/ant", "caption"]
    for title in ("Hopper-v5", "brax/ant"):
        assert legend(panels[title]) == ["sac (3 seeds)", "td3 (3 seeds)"]
        assert panels[title].get_xlabel() == "environment steps"
        assert panels[title].get_ylabel() == "evaluation return"
        lines = panels[title].get_lines()
        assert {line.get_color() for line in lines} == set(figures.COLOURS[:2])
        assert len(lines) == 2 * (1 + 3)  # each with its single learners
    assert "5 episodes per evaluation" in panels["caption"]


def test_runs_of_one_agent_are_pooled(tmp_path, panels):
    paths = [run(tmp_path / "a", seeds=(0, 1)), run(tmp_path / "b", seeds=(5,))]
    # Named twice, counted once.
    learning_curves.plot([*paths, tmp_path / "a"], tmp_path / "out/both.svg")
    panel = panels["Hopper-v5"]
    assert legend(panel) == ["sac (3 seeds)"]
    steps, mean = line(panel, "sac (3 seeds)").get_data()
    np.testing.assert_array_equal(steps, STEPS)
    np.testing.assert_allclose(mean, np.array(STEPS) * (1 / 100 + 10 / 50_000 / 3))


def test_other_settings_and_other_data_are_other_curves(tmp_path, panels):
    fast, slow = ({"config": {"actor_lr": rate, "tau": 0.5}} for rate in (0.01, 0.001))
    of_data = {"config": {}, "storage": "dataset"}
    learning_curves.plot(
        [
            run(tmp_path / "a", **fast),
            run(tmp_path / "b", **slow),
            run(tmp_path / "c", seeds=(7,), **slow),
            run(tmp_path / "d", "iql", data="d4rl/hopper-medium-v2", **of_data),
            run(tmp_path / "e", "iql", data="d4rl/hopper-expert-v2", **of_data),
            run(tmp_path / "f", "fql", data="own.npz", then_online=10, **of_data),
        ]
    )
    assert legend(panels["Hopper-v5"]) == [
        "sac actor-lr=0.01 (3 seeds)",
        "sac actor-lr=0.001 (4 seeds)",
    ]
    for name in ("d4rl/hopper-medium-v2", "d4rl/hopper-expert-v2"):
        assert legend(panels[name]) == ["iql (3 seeds)"]
        assert panels[name].get_xlabel() == "updates"
    assert panels["own"].get_xlabel() == "updates, then environment steps"


def test_metrics_of_the_training_are_drawn(tmp_path, panels):
    paths = [run(tmp_path / "a"), run(tmp_path / "b", "fqe", "none", steps=(), data="own.npz")]
    with records.Recorder(paths[1]) as recorder:
        for step, value in ((100, 3.0), (200, None), (300, 5.0)):
            recorder.metrics({"step": step, "critic/loss": [value, 1.0, 1.0]})
    output = learning_curves.plot(paths, metric="critic/loss")
    assert output == paths[0] / "curve-critic-loss.png"
    assert list(panels) == ["Hopper-v5", "own", "caption"]
    assert panels["own"].get_ylabel() == "critic/loss"
    assert legend(panels["own"]) == ["fqe (3 seeds)"]
    _, mean = line(panels["own"], "fqe (3 seeds)").get_data()
    np.testing.assert_allclose(mean, [5 / 3, 2.0, 7 / 3])  # between its neighbours
    assert "episodes" not in panels["caption"]


def test_a_metric_that_a_run_lacks_is_refused_with_those_that_it_has(tmp_path):
    path = run(tmp_path / "a")
    with pytest.raises(
        ValueError,
        match=r"'critic/los', of which .* no number\. Nearest: critic/loss\. Its metrics: "
        r"critic/loss\.$",
    ):
        learning_curves.plot([path], metric="critic/los")
    with pytest.raises(ValueError, match=r"give one of them"):
        learning_curves.plot([path], signal="cost", metric="critic/loss")


def test_where_no_step_is_common_the_learners_are_drawn(tmp_path, panels):
    learning_curves.plot(
        [
            run(tmp_path / str(k), seeds=(k,), steps=[10 * k, 10 * k + 5])
            for k in range(figures.MOST_SINGLE_LEARNERS + 1)
        ]
    )
    assert len(panels["Hopper-v5"].get_lines()) == figures.MOST_SINGLE_LEARNERS + 2


def test_a_seed_that_comes_twice_is_not_counted_as_two(tmp_path, panels):
    learning_curves.plot([run(tmp_path / "a", seeds=(0, 1)), run(tmp_path / "b", seeds=(1, 2))])
    assert legend(panels["Hopper-v5"]) == ["sac (3 seeds, 4 learners)"]


def test_a_single_learner_says_what_its_band_is(tmp_path, panels):
    learning_curves.plot(
        [run(tmp_path / "one", seeds=(0,)), run(tmp_path / "other", "td3", seeds=(0,), episodes=1)]
    )
    panel = panels["Hopper-v5"]
    assert legend(panel) == ["sac (1 seed, band over its episodes)", "td3 (1 seed, no band)"]
    assert len(panel.get_lines()) == 2
    assert "1 to 5 episodes per evaluation" in panels["caption"]
    assert "over seeds" not in panels["caption"]


def test_references_are_dashed_and_keep_their_agents_colour(tmp_path, panels):
    evaluations = records.read(run(tmp_path / "a"), "evaluations")
    curves = [learning_curves.Curve("sac", "Hopper-v5", evaluations, {5})]
    output = tmp_path / "curve.png"
    references = {
        ("sac", "Hopper-v5"): ([0, 50_000], [0, 500], [10, 20]),
        ("ppo", "Hopper-v5"): (50_000, 400, 30),
        ("sac", "Ant-v5"): ([0, 1], [0, 1], [1, 1]),  # no run of it: no panel
    }
    learning_curves.draw(curves, output, references)
    assert list(panels) == ["Hopper-v5", "caption"]
    panel = panels["Hopper-v5"]
    expected = [f"{agent}, published (mean ± standard deviation)" for agent in ("sac", "ppo")]
    assert legend(panel) == ["sac (3 seeds)", *expected]
    published = line(panel, expected[0])
    assert published.get_linestyle() == "--"
    assert published.get_color() == line(panel, "sac (3 seeds)").get_color() == figures.COLOURS[0]
    with pytest.raises(
        ValueError, match=r"reference of 'sac' in 'Hopper-v5' has steps \(2,\), mean \(1,\)"
    ):
        learning_curves.draw(curves, output, {("sac", "Hopper-v5"): ([0, 1], [0], [0, 1])})


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "SVG"])
def test_the_same_runs_are_the_same_file(tmp_path, suffix):
    path = run(tmp_path / "a")
    first = learning_curves.plot([path], tmp_path / f"first.{suffix}")
    second = learning_curves.plot([path], tmp_path / f"second.{suffix}")
    assert first.read_bytes() == second.read_bytes()
    if suffix == "svg":
        texts = ElementTree.parse(first).getroot().itertext()
        assert any("evaluation return" in text for text in texts)


def test_many_agents_are_told_apart(tmp_path, panels):
    learning_curves.plot([run(tmp_path / str(k), f"agent{k}", seeds=(k,)) for k in range(9)])
    looks = [(each.get_color(), each.get_linestyle()) for each in panels["Hopper-v5"].get_lines()]
    assert len(set(looks)) == 9


@pytest.mark.parametrize("steps", [[10_000], [0]])
def test_a_single_evaluation(tmp_path, steps):
    assert learning_curves.plot(
        [run(tmp_path / "a", steps=steps), run(tmp_path / "b", "td3", seeds=(0,), steps=steps)]
    ).exists()


def test_runs_that_share_no_steps_and_torn_or_missing_numbers(tmp_path, panels):
    first = run(tmp_path / "a", seeds=(0,), steps=[0, 10])
    second = run(tmp_path / "b", seeds=(1,), steps=[20, 30])
    with (first / "evaluations.jsonl").open("a") as file:
        file.write(
            '{"step": 20, "learner": 0, "seed": 0, "returns": [null, 1.0]}\n{"step": 30, "lea'
        )
    with (second / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 40, "learner": 0, "seed": 1, "returns": [null]}\n')
    learning_curves.plot([first, second])
    assert len(panels["Hopper-v5"].get_lines()) == 3


def test_many_learners_are_not_drawn_one_by_one(tmp_path, panels):
    learning_curves.plot([run(tmp_path / "a", seeds=range(figures.MOST_SINGLE_LEARNERS + 1))])
    assert len(panels["Hopper-v5"].get_lines()) == 1


# Errors


def test_no_paths():
    with pytest.raises(
        ValueError, match=r"there is no run to plot\. Name the folder of one or more: rljax plot"
    ):
        learning_curves.plot([])


def test_a_path_that_is_not_a_run(tmp_path):
    with pytest.raises(ValueError, match="nowhere' is not a run: there is no such folder"):
        learning_curves.plot([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError,
        match=r"empty' is not a run: it has no config\.json\. The folder that rljax train",
    ):
        learning_curves.plot([tmp_path / "empty"])
    assert not list(tmp_path.rglob("*.png"))


def test_a_folder_of_runs_names_them(tmp_path):
    run(tmp_path / "runs/sac/Hopper-v5/now", steps=[0])
    with pytest.raises(
        ValueError, match=r"runs' is not a run: .* Runs in it: '.*runs/sac/Hopper-v5/now'\."
    ):
        learning_curves.plot([tmp_path / "runs"])


def test_a_run_without_evaluations_yet(tmp_path):
    run(tmp_path / "young", steps=[])
    with pytest.raises(
        ValueError,
        match=r"young' has no evaluations yet: its evaluations\.jsonl is missing or empty",
    ):
        learning_curves.plot([tmp_path / "young"])


def test_an_unknown_suffix(tmp_path):
    with pytest.raises(
        ValueError, match=r"curve\.jpeg', its suffix must be one of \.png, \.svg, \.pdf"
    ):
        learning_curves.plot([run(tmp_path / "a")], tmp_path / "curve.jpeg")


def test_sums_of_a_signal_are_drawn_in_place_of_returns(tmp_path, panels):
    out = run(tmp_path / "a")
    lines = records.read(out, "evaluations")
    signals = [line | {"signals": {"cost": [line["step"] / 1000.0] * 5}} for line in lines]
    text = "".join(f"{json.dumps(line)}\n" for line in signals)
    (out / "evaluations.jsonl").write_text(text)
    assert learning_curves.plot([out], signal="cost").name == "curve-cost.png"
    panel = panels["Hopper-v5"]
    assert panel.get_ylabel() == "evaluation cost"
    np.testing.assert_allclose(panel.lines[-1].get_ydata(), np.array(STEPS) / 1000)
    with pytest.raises(ValueError, match=r"--signal is 'wear', and the run in '.*' has only cost"):
        learning_curves.plot([out], signal="wear")
    with pytest.raises(ValueError, match=r"--signal is 'cost', and the run in '.*' has none"):
        learning_curves.plot([run(tmp_path / "b")], signal="cost")
