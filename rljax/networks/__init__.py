"""Parts of agents.

The names of `layers` and `initialisation` are also available here: `networks.MLP`.
"""

from rljax.networks.distributions import Actor
from rljax.networks.ensembles import (
    DiscreteEnsemble,
    Reduction,
    WithPessimism,
    create_critic,
    ensemble,
    fit_bins,
    largest,
    lower_bound,
    member,
    members,
    outputs_and_head,
    reduced,
    smallest,
    smallest_of_subset,
    subset,
    values_and_slopes,
)
from rljax.networks.initialisation import SPARSITY, Initialisation, initialisers
from rljax.networks.layers import (
    ACTIVATIONS,
    MLP,
    Activation,
    Convolutional,
    Dense,
    Dropout,
    Encoded,
    Ensemble,
    Network,
    Norm,
    Precision,
    centred,
    create,
    feedforward,
    joined,
    mish,
    patches,
)
from rljax.networks.optimisation.optimisers import (
    WithCritics,
    WithOptimiser,
    WithSchedule,
    optimiser,
    trained,
)
from rljax.networks.optimisation.targets import copy, polyak, polyak_every
from rljax.networks.optimisation.trained import Trained, clipped, cosine_rate, parameters_of

# What can be applied: a trained network, or one without an optimiser.
AnyNetwork = Network | Trained

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "SPARSITY",
    "Activation",
    "Actor",
    "AnyNetwork",
    "Convolutional",
    "Dense",
    "DiscreteEnsemble",
    "Dropout",
    "Encoded",
    "Ensemble",
    "Initialisation",
    "Network",
    "Norm",
    "Precision",
    "Reduction",
    "Trained",
    "WithCritics",
    "WithOptimiser",
    "WithPessimism",
    "WithSchedule",
    "centred",
    "clipped",
    "copy",
    "cosine_rate",
    "create",
    "create_critic",
    "ensemble",
    "feedforward",
    "fit_bins",
    "initialisers",
    "joined",
    "largest",
    "lower_bound",
    "member",
    "members",
    "mish",
    "optimiser",
    "outputs_and_head",
    "parameters_of",
    "patches",
    "polyak",
    "polyak_every",
    "reduced",
    "smallest",
    "smallest_of_subset",
    "subset",
    "trained",
    "values_and_slopes",
]
