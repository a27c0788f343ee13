"""Independent copies of any network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import linen as nn

from rljax.agent import Array
from rljax.networks.layers import Module, copies, joined


class BlockEnsemble(Module):
    """`size` independent copies of a network as one batched product: to [C, ...], or [C, ..., K].

    A call hands its options, such as `train`, to the members. Their `project` must treat leading
    axes of kernels alike.
    """

    size: int
    member: nn.Module

    @nn.compact
    def __call__(self, *inputs: Array, **options: Any) -> Array:
        call = copies(lambda member, x: member(x, **options), self.size)
        outputs = call(self.member, joined(inputs))
        return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs

    def project(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters after the member's `project`, if it has one."""
        project = getattr(self.member, "project", None)
        return params if project is None else {**params, "member": project(params["member"])}
