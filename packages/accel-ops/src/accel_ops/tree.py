"""Apply functions to the tensors of nested lists, tuples, named tuples and mappings, and keep container types."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch


def is_torch_tensor(value: object) -> bool:
    """Return whether `value` is a tensor."""
    return isinstance(value, torch.Tensor)


def is_namedtuple(value: object) -> bool:
    """Return whether `value` is a tuple with named fields."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def honor_type(like: Any, items: Any) -> Any:
    """Return a list or tuple of `items`, of the type of `like`.

    Args:
        like: A list, tuple or named tuple.
        items: The items of the new one.
    """
    return type(like)(*items) if is_namedtuple(like) else type(like)(items)


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """Apply a function to the leaves of nested data that pass a test.

    Args:
        func: Function to call with each leaf, then with `args` and `kwargs`.
        data: Leaves in lists, tuples, named tuples and mappings.
        *args: Further arguments of `func`.
        test_type: Function that returns whether to call `func` with a value; it is asked about containers too.
        error_on_other_type: Raise for any other leaf, in place of returning it as it is.
        **kwargs: Keyword arguments of `func`.

    Returns:
        The results in new containers of the same types.

    Raises:
        TypeError: A leaf does not pass the test, and `error_on_other_type` is set.
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
    """Return a mapping of the type of `like`, with its other attributes, that holds `items`.

    Args:
        like: The mapping whose type to use.
        items: The entries, one for each key of `like`.
    """
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
    """Yield every leaf with its path, in the order of the containers.

    Yields:
        A path such as "['x'][0]", and the leaf.
    """
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
    """Replace each tensor by the list of its sizes.

    Args:
        data: Tensors in lists, tuples, named tuples and mappings.

    Raises:
        TypeError: A leaf is no tensor.
    """
    return recursively_apply(lambda tensor: list(tensor.shape), data, error_on_other_type=True)


def listify(data: Any) -> Any:
    """Replace each tensor by nested lists of numbers.

    Args:
        data: Tensors in lists, tuples, named tuples and mappings; other leaves are returned as they are.
    """
    return recursively_apply(
        lambda tensor: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().cpu().tolist(), data
    )


def slice_tensors(
    data: Any, tensor_slice: Any, process_index: int | None = None, num_processes: int | None = None
) -> Any:
    """Index each tensor of nested data with a slice.

    Args:
        data: Nested tensors.
        tensor_slice: The index, such as `slice(0, 2)`.
        process_index: Not used; there for callers who pass it.
        num_processes: Not used; there for callers who pass it.
    """
    return recursively_apply(lambda tensor: tensor[tensor_slice], data)


def concatenate(data: Any, dim: int = 0, *, is_column: Callable[[Any], bool] = lambda value: False) -> Any:
    """Join nested structures leaf by leaf.

    Args:
        data: List of structures of one form.
        dim: Dim along which tensors are joined.
        is_column: Function that returns whether to join a list or tuple end to end, and not entry by entry.

    Raises:
        TypeError: A leaf is no tensor, and there is more than one structure to join.
    """
    first = data[0]
    if len(data) == 1:
        return first
    if is_column(first):
        return honor_type(first, [entry for part in data for entry in part])

    def join(key: Any) -> Any:
        return concatenate([part[key] for part in data], dim, is_column=is_column)

    if isinstance(first, tuple | list):
        return honor_type(first, [join(index) for index in range(len(first))])
    if isinstance(first, Mapping):
        return same_mapping(first, {key: join(key) for key in first})
    if not isinstance(first, torch.Tensor):
        raise TypeError(f"only tensors can be joined, found a {type(first).__name__}")
    return torch.cat(data, dim=dim)


def convert_to_fp32(data: Any) -> Any:
    """Convert each float16 or bfloat16 tensor to float32.

    Args:
        data: Tensors in lists, tuples, named tuples and mappings; other leaves are returned as they are.
    """
    return recursively_apply(torch.Tensor.float, data, test_type=_is_half)


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
