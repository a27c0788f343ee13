"""Parts of agents: layers, torsos, distributions, generative models, running statistics, eligibility traces.

The names of `layers` are also available here: `networks.MLP`, `networks.create`.
"""

from rljax.networks.ensembles import member, members, smallest, smallest_of_subset
from rljax.networks.layers import (
    ACTIVATIONS,
    MLP,
    SPARSITY,
    Activation,
    Convolutional,
    Dense,
    Dropout,
    Ensemble,
    Initialisation,
    Network,
    Norm,
    Precision,
    centred,
    copy,
    create,
    feedforward,
    initialisers,
    joined,
    mish,
    patches,
    polyak,
    require_fit,
)

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "SPARSITY",
    "Activation",
    "Convolutional",
    "Dense",
    "Dropout",
    "Ensemble",
    "Initialisation",
    "Network",
    "Norm",
    "Precision",
    "centred",
    "copy",
    "create",
    "feedforward",
    "initialisers",
    "joined",
    "member",
    "members",
    "mish",
    "patches",
    "polyak",
    "require_fit",
    "smallest",
    "smallest_of_subset",
]
