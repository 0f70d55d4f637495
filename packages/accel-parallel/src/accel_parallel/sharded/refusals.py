"""Refuse models that cannot be sharded, before they are."""

from collections.abc import Sequence

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def refuse_sharded_parts(model: nn.Module) -> None:
    """Raise ValueError if modules or parameters of a model are sharded already."""
    names = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    if names:
        raise ValueError(
            f"{len(names)} modules of {type(model).__name__} are sharded already ({', '.join(names[:3])}): models that"
            " share them have to be parts of one model, which is prepared; leave fully_shard to prepare, or call it for"
            " the model as well"
        )
    names = [name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)]
    if names:
        raise ValueError(
            f"{len(names)} parameters of {type(model).__name__} are parts already ({', '.join(names[:3])}), as in a"
            " deep copy of a prepared model; copy the model before prepare, and load the weights"
        )


def refuse_sparse(model: nn.Module) -> None:
    """Raise ValueError if a trained layer has sparse gradients."""
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad
    ]
    if names:
        raise ValueError(
            f"{', '.join(names)} of {type(model).__name__} with sparse=True: torch's fully_shard cannot reduce sparse"
            " gradients; leave out sparse=True, or use strategy='ddp'"
        )


def refuse_mixed_dtypes(model: nn.Module, blocks: Sequence[nn.Module], left_out: set[nn.Parameter]) -> None:
    """Raise ValueError if a block has gradients of several dtypes, as fully_shard reduces them together.

    Args:
        model: The model.
        blocks: Its blocks.
        left_out: Parameters that are not sharded.
    """
    seen = set(left_out)
    for module in [*reversed(blocks), model]:
        trained = {parameter for parameter in module.parameters() if parameter.requires_grad} - seen
        seen |= trained
        dtypes = sorted({str(parameter.dtype) for parameter in trained})
        if len(dtypes) > 1:
            raise ValueError(
                f"trained parameters of one block ({type(module).__name__}) are of {' and '.join(dtypes)}: their"
                " gradients travel together; convert them to one dtype, or freeze those of the other"
            )
