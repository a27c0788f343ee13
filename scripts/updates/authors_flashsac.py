"""Updates of FlashSAC's unmodified agent (PyTorch), in float64.

  peer/bin/python scripts/updates/authors_flashsac.py FlashSAC inputs.npz outputs.npz

The folder `FlashSAC` has Holiday-Robot/FlashSAC of GitHub at 87edc90. Python needs PyTorch and
Gymnasium, and no rljax: scripts/updates/compare_flashsac.py calls this file. `inputs.npz` has the
settings, the batches and the noise of actions; `outputs.npz` gets the first and the last
parameters and statistics, and the losses of each update.

PyTorch's name of float32 stands for float64 here, and nothing is compiled. With `--seconds`, the
seconds of updates in float32 on one thread are measured instead, with `--compiled` of networks that
PyTorch compiles, as their settings have it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

NETWORKS = ("actor", "critic", "target_critic", "temperature")
SPREAD = 0.1  # std of what parameters are moved by first, so that targets differ from critics


def authors(checkout: Path, compiled: bool) -> Any:
    """The module of their agent."""
    os.environ["TORCHDYNAMO_DISABLE"] = "0" if compiled else "1"
    omegaconf = types.ModuleType("omegaconf")
    omegaconf.OmegaConf = None  # type: ignore[attr-defined]
    sys.modules["omegaconf"] = omegaconf
    sys.path.insert(0, str(checkout))
    from flash_rl.agents.flashSAC import agent  # pyright: ignore[reportMissingImports]

    return agent


def use_float64() -> None:
    """Let PyTorch's float32 be float64."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)


def create(agent: Any, settings: Mapping[str, Any]) -> Any:
    """Their agent with `settings` over those of its scripts for CPU simulators."""
    from gymnasium import spaces

    sizes = {name: settings[name] for name in ("observation", "action")}
    defaults = {
        "seed": 0,
        "normalize_reward": False,
        "normalized_G_max": 5.0,
        "asymmetric_observation": False,
        "device_type": "cpu",
        "buffer_max_length": 8,
        "buffer_min_length": 1,
        "buffer_device_type": "cpu",
        "sample_batch_size": 512,
        "learning_rate_init": 3e-4,
        "learning_rate_peak": 3e-4,
        "learning_rate_end": 1.5e-4,
        "learning_rate_warmup_rate": 0.0,
        "learning_rate_warmup_step": 0,
        "learning_rate_decay_rate": 1.0,
        "learning_rate_decay_step": settings["updates"],
        "actor_num_blocks": 2,
        "actor_hidden_dim": 128,
        "actor_bc_alpha": 0.0,
        "actor_noise_zeta_mu": 2.0,
        "actor_noise_zeta_max": 16,
        "actor_update_period": 2,
        "critic_num_blocks": 2,
        "critic_hidden_dim": 256,
        "critic_num_bins": 101,
        "critic_min_v": -5.0,
        "critic_max_v": 5.0,
        "critic_target_update_tau": 0.01,
        "temp_initial_value": 0.01,
        "temp_target_sigma": 0.15,
        "temp_target_entropy": None,
        "gamma": 0.99,
        "n_step": 1,
        "use_compile": False,
        "compile_mode": "default",
        "use_amp": False,
        "load_optimizer": True,
        "load_reward_normalizer": True,
    }
    config = agent.FlashSACConfig(**defaults | settings["changes"])
    observations = spaces.Box(-np.inf, np.inf, (1, sizes["observation"]))
    actions = spaces.Box(-1.0, 1.0, (1, sizes["action"]))
    return agent.FlashSACAgent(observations, actions, {}, config)


def batches(arrays: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """Each update's batch by their names."""
    import torch  # pyright: ignore[reportMissingImports]

    names = ("observation", "action", "reward", "terminated", "next_observation")
    for i in range(len(arrays["reward"])):
        yield {
            name: torch.as_tensor(arrays[name][i]).to(torch.get_default_dtype()) for name in names
        }


def parameters(learner: Any) -> dict[str, np.ndarray]:
    """All parameters and statistics."""
    return {
        f"{name}/{key}": value.detach().numpy().copy()
        for name in NETWORKS
        for key, value in getattr(learner, f"_{name}").network.state_dict().items()
    }


def spread(learner: Any) -> None:
    """Move all parameters of actor, critics and targets."""
    import torch  # pyright: ignore[reportMissingImports]

    with torch.no_grad():
        for name in NETWORKS[:3]:
            network = getattr(learner, f"_{name}")
            for x in network.network.parameters():
                x.add_(SPREAD * torch.randn_like(x))
            network.normalize_parameters()


def exact_bins(learner: Any) -> None:
    """The values of their critics' bins, which they round to float32, in float64."""
    for name in ("critic", "target_critic"):
        bins = getattr(learner, f"_{name}").network.predictor.bin_values
        ends = learner._cfg.critic_min_v, learner._cfg.critic_max_v
        bins.copy_(bins.new_tensor(np.linspace(*ends, bins.shape[-1])))


def updated(learner: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """First and last parameters, and losses [N], with the noise of `arrays`."""
    import torch  # pyright: ignore[reportMissingImports]

    results = {f"first/{name}": x for name, x in parameters(learner).items()}
    losses: dict[str, list[float]] = {}
    draws: list[Any] = []
    torch.distributions.normal._standard_normal = lambda *_, **__: draws.pop(0)
    for i, batch in enumerate(batches(arrays)):
        learner._replay_buffer.sample = lambda batch=batch: dict(batch)
        acts = i % learner._cfg.actor_update_period == 0
        kinds = ("actor_noise", "critic_noise") if acts else ("critic_noise",)
        draws[:] = [torch.as_tensor(arrays[kind][i]) for kind in kinds]
        info = learner.update()
        assert not draws, "they drew less noise than expected"
        for name in ("actor/loss", "actor/entropy", "critic/loss", "temperature/loss"):
            losses.setdefault(name, []).append(info.get(name, np.nan))
    results |= {f"loss/{name}": np.array(values) for name, values in losses.items()}
    return results | {f"last/{name}": x for name, x in parameters(learner).items()}


def scales(arrays: Mapping[str, np.ndarray], gamma: float, limit: float) -> np.ndarray:
    """What their normaliser divides rewards by, after each step [T] of rewards [T, E]."""
    import torch  # pyright: ignore[reportMissingImports]
    from flash_rl.agents.utils import (  # pyright: ignore[reportMissingImports]
        reward_normalization,
    )

    normaliser = reward_normalization.RewardNormalizer(gamma, limit, False, torch.device("cpu"))
    steps = [torch.as_tensor(arrays[f"stream/{x}"]) for x in ("reward", "terminated", "truncated")]
    result = []
    for reward, terminated, truncated in zip(*steps, strict=True):
        normaliser.update_reward_stats(reward, terminated, truncated)
        result.append(1.0 / float(normaliser.normalize_rewards(torch.ones(1))))
    return np.array(result)


def seconds(learner: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The seconds of each update."""
    times = []
    for batch in batches(arrays):
        learner._replay_buffer.sample = lambda batch=batch: dict(batch)
        start = time.perf_counter()
        learner.update()
        times.append(time.perf_counter() - start)
    return np.array(times)


def main() -> None:
    """Make the updates of one case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="the authors' repository")
    parser.add_argument("inputs", type=Path)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--seconds", action="store_true", help="measure the time of updates")
    parser.add_argument("--compiled", action="store_true", help="with --seconds: compile networks")
    options = parser.parse_args()
    arrays = dict(np.load(options.inputs))
    settings = json.loads(str(arrays["settings"]))
    agent = authors(options.checkout, options.compiled)
    import torch  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    if options.seconds:
        torch.set_num_threads(1)
        settings["changes"] |= {"use_compile": options.compiled}
        np.savez(options.outputs, seconds=seconds(create(agent, settings), arrays))
        return
    use_float64()
    learner = create(agent, settings)
    spread(learner)
    exact_bins(learner)
    results: dict[str, Any] = {**updated(learner, arrays)}
    if "stream/reward" in arrays:
        results["scales"] = scales(arrays, 0.99, 5.0)
    np.savez(options.outputs, **results)


if __name__ == "__main__":
    main()
