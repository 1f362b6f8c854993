"""One arithmetic for numpy arrays and torch tensors.

A function of this package that gets a tensor returns tensors, on the same device and of the same float type, and
gradients flow through it. From lists and numpy arrays it makes numpy arrays of float64. torch is never imported here:
where a caller passes a tensor, it is imported already.

Shapes must be equal, and a mask must hold 0 and 1 only, because a mask that is broadcast trains the wrong tokens
without an error. Why this is not array-api-compat: docs/decisions/0017.
"""

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from rolloutpool_rl.errors import MaskInvalid, ShapeMismatch

Array: TypeAlias = Any
"""A numpy array or a torch tensor. Functions also take lists of numbers in its place."""


def namespace(*values: Array) -> Any:
    """Returns the module `torch` if one of the values is a tensor, else `numpy`."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and any(isinstance(value, torch.Tensor) for value in values) else np


def as_floats(**values: Array) -> tuple[Array, ...]:
    """Converts values of one shape to one float type, in the order given; raises `ShapeMismatch`, which names them."""
    xp = namespace(*values.values())
    if xp is np:
        arrays = [np.asarray(value, dtype=np.float64) for value in values.values()]
    else:
        like = next(value for value in values.values() if isinstance(value, xp.Tensor))
        dtype = like.dtype if like.is_floating_point() else xp.float64
        arrays = [
            value if isinstance(value, xp.Tensor) and value.is_floating_point() else _tensor(xp, value, like, dtype)
            for value in values.values()
        ]
    if len({tuple(array.shape) for array in arrays}) > 1:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in zip(values, arrays, strict=True))
        raise ShapeMismatch(f"These must have one shape: {shapes}.")
    return tuple(arrays)


def as_flags(mask: Array, like: Array) -> Array:
    """Converts a mask of the shape of `like` to booleans, in the library and on the device of `like`.

    A mask that is boolean already is not read, so it costs no synchronisation with an accelerator. Raises
    `ShapeMismatch`, or `MaskInvalid` for an entry that is neither 0 nor 1.
    """
    xp = namespace(like)
    flags = np.asarray(mask) if xp is np else _tensor(xp, mask, like, None)
    if tuple(flags.shape) != tuple(like.shape):
        raise ShapeMismatch(f"The mask has shape {list(flags.shape)}, the values have {list(like.shape)}.")
    if flags.dtype == xp.bool:
        return flags
    if not bool(((flags == 0) | (flags == 1)).all()):
        raise MaskInvalid("A mask holds 0 and 1 only; weights belong in the values.")
    return flags == 1


def check_vector(**values: Array) -> None:
    """Raises ShapeMismatch unless each value has one dimension."""
    for name, value in values.items():
        if len(value.shape) != 1:
            raise ShapeMismatch(f"{name} must have one dimension [R], one sequence at a time; it has {value.shape}.")


def add_at(size: int, index: Array, values: Array) -> Array:
    """Adds values [N] to `size` zeros, at these places [N]; values with the same index add up."""
    xp = namespace(values)
    if xp is np:
        return np.bincount(index, weights=values, minlength=size)
    return xp.zeros(size, dtype=values.dtype, device=values.device).index_add(0, index, values)


def _tensor(xp: Any, value: Array, like: Array, dtype: Any) -> Array:
    if not isinstance(value, xp.Tensor | np.ndarray) and isinstance(value, Sequence):
        value = np.asarray(value)
    return xp.as_tensor(value, dtype=dtype, device=like.device)
