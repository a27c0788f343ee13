"""The sources of batches, and the declarations with which agents ask for them.

def experience(config: Config) -> buffers.Replay:
    return buffers.Replay(replay_size=config.replay_size, batch_size=config.batch_size)
"""

from rljax.buffers.columns import NextAction, ReturnToGo, Source, Time
from rljax.buffers.dataset import (
    OPTIMAL_ACTION,
    PART,
    TASK,
    Dataset,
    DatasetDraw,
    DatasetSettings,
    PartRows,
    UniformRows,
    WeightedRows,
    with_weights,
)
from rljax.buffers.draws import (
    PLAYED,
    Contexts,
    Decisions,
    EndedEpisodes,
    EpisodeWindows,
    NStep,
    TrajectoryWindows,
)
from rljax.buffers.experience import Column, Experience, RewardTransform, Supply, declaration
from rljax.buffers.goals.of_data import (
    Goals,
    Subgoals,
    WithActorGoals,
    WithGoals,
    check_goals,
    options,
    toward,
)
from rljax.buffers.goals.of_replay import (
    IS_GOAL,
    FutureGoals,
    Hindsight,
    ReplayGoals,
    goal_dataset,
)
from rljax.buffers.goals.trajectories import halves
from rljax.buffers.mixed import Mixed
from rljax.buffers.prioritised import (
    Prioritised,
    PrioritisedRows,
    PrioritySettings,
    RowSettings,
    data_draw_of,
    draw_of,
    priorities,
    replay_draw,
    row_dataset,
    squared_loss,
    weighted,
)
from rljax.buffers.replay import Draw, Replay, ReplaySettings, Uniform, batch_rows
from rljax.buffers.rollout import (
    Rollout,
    beside,
    discounted_sums,
    explained_variance,
    generalised_advantages,
    minibatches,
)
from rljax.buffers.rows import random_rows, rows_of, trajectory_ends
from rljax.buffers.sequences import Sequences, n_step_returns
from rljax.buffers.storage.reward_scales import RewardScale
from rljax.buffers.stream import Stream, StreamSettings
from rljax.buffers.windows import (
    WithChunks,
    bootstrapped,
    valid_actions,
    whole_chunks,
    with_chunk_return,
)

__all__ = [
    "IS_GOAL",
    "OPTIMAL_ACTION",
    "PART",
    "PLAYED",
    "TASK",
    "Column",
    "Contexts",
    "Dataset",
    "DatasetDraw",
    "DatasetSettings",
    "Decisions",
    "Draw",
    "EndedEpisodes",
    "EpisodeWindows",
    "Experience",
    "FutureGoals",
    "Goals",
    "Hindsight",
    "Mixed",
    "NStep",
    "NextAction",
    "PartRows",
    "Prioritised",
    "PrioritisedRows",
    "PrioritySettings",
    "Replay",
    "ReplayGoals",
    "ReplaySettings",
    "ReturnToGo",
    "RewardScale",
    "RewardTransform",
    "Rollout",
    "RowSettings",
    "Sequences",
    "Source",
    "Stream",
    "StreamSettings",
    "Subgoals",
    "Supply",
    "Time",
    "TrajectoryWindows",
    "Uniform",
    "UniformRows",
    "WeightedRows",
    "WithActorGoals",
    "WithChunks",
    "WithGoals",
    "batch_rows",
    "beside",
    "bootstrapped",
    "check_goals",
    "data_draw_of",
    "declaration",
    "discounted_sums",
    "draw_of",
    "explained_variance",
    "generalised_advantages",
    "goal_dataset",
    "halves",
    "minibatches",
    "n_step_returns",
    "options",
    "priorities",
    "random_rows",
    "replay_draw",
    "row_dataset",
    "rows_of",
    "squared_loss",
    "toward",
    "trajectory_ends",
    "valid_actions",
    "weighted",
    "whole_chunks",
    "with_chunk_return",
    "with_weights",
]
