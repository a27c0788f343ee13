"""Agents for which a sibling stands in the quick tests of what JAX does alike for both."""

from __future__ import annotations

SIBLINGS = {
    "calql": "cql",
    "cpo": "ppo",
    "cql_discrete": "dqn",
    "dql": "iql",
    "dsact": "sac",
    "famo2o": "iql",
    "fdvl": "iql",
    "fql": "iql",
    "gciql": "iql",
    "h2o": "sac",
    "hnpg": "ppo",
    "ifql": "iql",
    "moorl": "sac",
    "ofql": "iql",
    "ppo_lagrangian": "ppo",
    "pqn": "ppo",
    "rebrac": "td3",
    "recoil": "iql",
    "riql": "iql",
    "ro2o": "edac",
    "sac_discrete": "sac",
    "sac_lagrangian": "sac",
    "stream_q": "stream_ac",
    "stream_sarsa": "stream_ac",
    "stream_td": "stream_ac",
    "td3_bc": "td3",
}
