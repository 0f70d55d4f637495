"""Read from torch which parameters of a sharded model are in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule


def parameter_groups(model: nn.Module) -> list[Any]:
    """Return torch's groups of the parameters of a model that ranks hold parts of.

    Source:
        `FSDPState` of torch 2.9 to 2.13.
    """
    states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
    return [state._fsdp_param_group for state in states if state._fsdp_param_group is not None]


def divided_parameters(groups: Sequence[Any]) -> list[nn.Parameter]:
    """Return the parameters of groups as they are now: `load_state_dict(assign=True)` puts others in their places."""
    return [held.sharded_param for group in groups for held in group.fsdp_params]
