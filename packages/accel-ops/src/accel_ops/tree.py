"""Functions over the tensors of nested lists, tuples, named tuples and mappings; the containers keep their types."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch


def is_torch_tensor(value: object) -> bool:
    """Whether `value` is a tensor."""
    return isinstance(value, torch.Tensor)


def is_namedtuple(value: object) -> bool:
    """Whether `value` is a tuple with named fields."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def honor_type(like: Any, items: Any) -> Any:
    """A list or tuple of `items`, of the same type as `like`."""
    return type(like)(*items) if is_namedtuple(like) else type(like)(items)


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """`data` with `func` applied to every leaf that passes `test_type`; other leaves stay as they are.

    Raises: TypeError for another leaf if `error_on_other_type` is set.
    """

    def apply(value: Any) -> Any:
        if test_type(value):
            return func(value, *args, **kwargs)
        if isinstance(value, tuple | list):
            return honor_type(value, [apply(item) for item in value])
        if isinstance(value, Mapping):
            return same_mapping(value, {key: apply(item) for key, item in value.items()})
        if error_on_other_type:
            name = getattr(func, "__name__", repr(func))
            raise TypeError(
                f"{name} takes tensors in lists, tuples, named tuples and mappings; found a {type(value).__name__}"
            )
        return value

    return apply(data)


def same_mapping(like: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the type of `like`, with its other attributes, that holds `items`."""
    if type(like) is dict:
        return items
    if isinstance(like, MutableMapping):
        # A copy keeps the factory of a defaultdict and the fields of a BatchEncoding, which no constructor knows.
        twin = copy.copy(like)
        for key, item in items.items():
            twin[key] = item
        return twin
    return type(like)(items)  # type: ignore[call-arg] # of a mapping's constructor nothing is declared


def leaves(data: Any) -> Iterator[tuple[str, Any]]:
    """Every leaf with its path, in the order of the containers."""
    if isinstance(data, tuple | list):
        for index, item in enumerate(data):
            for path, leaf in leaves(item):
                yield f"[{index}]{path}", leaf
    elif isinstance(data, Mapping):
        for key, item in data.items():
            for path, leaf in leaves(item):
                yield f"[{key!r}]{path}", leaf
    else:
        yield "", data


def get_shape(data: Any) -> Any:
    """`data` with each tensor replaced by the list of its sizes."""
    return recursively_apply(lambda tensor: list(tensor.shape), data, error_on_other_type=True)


def listify(data: Any) -> Any:
    """`data` with each tensor replaced by nested lists of numbers; bfloat16 goes through float32."""
    return recursively_apply(
        lambda tensor: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().cpu().tolist(), data
    )


def slice_tensors(
    data: Any, tensor_slice: Any, process_index: int | None = None, num_processes: int | None = None
) -> Any:
    """`data` with `tensor_slice` taken of each tensor."""
    return recursively_apply(lambda tensor: tensor[tensor_slice], data)


def concatenate(data: Any, dim: int = 0) -> Any:
    """The nested structures of the list `data`, joined leaf by leaf along `dim`.

    Raises: TypeError for leaves that are no tensors, if there is more than one structure to join.
    """
    first = data[0]
    if len(data) == 1:
        return first
    if isinstance(first, tuple | list):
        return honor_type(first, [concatenate([part[index] for part in data], dim=dim) for index in range(len(first))])
    if isinstance(first, Mapping):
        return same_mapping(first, {key: concatenate([part[key] for part in data], dim=dim) for key in first})
    if not isinstance(first, torch.Tensor):
        raise TypeError(f"only tensors can be joined, found a {type(first).__name__}")
    return torch.cat(data, dim=dim)


def convert_to_fp32(data: Any) -> Any:
    """`data` with each float16 or bfloat16 tensor in float32."""
    return recursively_apply(torch.Tensor.float, data, test_type=_is_half)


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
