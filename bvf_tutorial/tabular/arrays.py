"""This file knows how float64 arrays and sparse matrices are checked and frozen at the package's border."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from .errors import InvalidModelError

__all__ = [
    "ROUNDING",
    "FloatArray",
    "IntArray",
    "Matrix",
    "as_floats",
    "as_matrix",
    "as_vector",
    "check_distribution",
    "frozen",
    "scale_rows",
]

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
Matrix: TypeAlias = Any
"""A dense ``FloatArray`` of two axes or a ``scipy.sparse.csr_array``; SciPy ships no types to say so."""

ROUNDING = 1e-9
"""How far a probability row may be from one, well above float64 rounding, well below a typing error."""


def frozen(array: FloatArray) -> FloatArray:
    """Return ``array`` as a read-only view, so that a frozen record cannot change behind its validation."""
    view = array.view()
    view.flags.writeable = False
    return view


def as_floats(name: str, value: Any) -> FloatArray:
    """Return ``value`` as a new float64 array of any shape, or raise an error that names it."""
    try:
        given = np.asarray(value)
        if given.dtype.kind not in "biufO":
            raise TypeError(f"its entries are {given.dtype}")
        return np.array(given, dtype=np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidModelError(
            f"{name} is no array of real numbers ({error}); give numbers, equally many in each row."
        ) from error


def as_vector(name: str, value: npt.ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Return ``value`` as a read-only finite float64 array of ``shape``, or raise an error that names the entry."""
    array = as_floats(name, value)
    if array.shape != shape:
        raise InvalidModelError(
            f"{name} has shape {array.shape}, expected {shape}; give one entry per row of the model."
        )
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InvalidModelError(f"{name}[{_index(where)}] is {array[where]}; replace it with a finite number.")
    return frozen(array)


def as_matrix(name: str, value: Any) -> Matrix:
    """Return a dense float64 matrix or a ``csr_array``, finite and non-negative, or raise an error naming the entry."""
    if sparse.issparse(value):
        if value.ndim != 2 or value.dtype.kind not in "biuf":
            raise InvalidModelError(
                f"{name} is sparse with shape {value.shape} and entries {value.dtype}; give real numbers on two axes."
            )
        matrix = sparse.csr_array(value, dtype=np.float64, copy=True)
        matrix.sum_duplicates()
        bad = np.flatnonzero(~np.isfinite(matrix.data) | (matrix.data < 0))
        if bad.size:
            entry = matrix.tocoo()
            row, column = int(entry.row[bad[0]]), int(entry.col[bad[0]])
            raise InvalidModelError(
                f"{name}[{row}, {column}] is {matrix.data[bad[0]]}; a probability is finite and >= 0."
            )
        return matrix
    array = as_floats(name, value)
    bad_entry = np.argwhere(~np.isfinite(array) | (array < 0))
    if bad_entry.size:
        where = tuple(int(i) for i in bad_entry[0])
        raise InvalidModelError(f"{name}[{_index(where)}] is {array[where]}; a probability is finite and >= 0.")
    return frozen(array)


def check_distribution(name: str, value: npt.ArrayLike, size: int) -> FloatArray:
    """Return a probability vector of ``size`` entries, or raise an error that says what is wrong with it."""
    law = as_vector(name, value, (size,))
    if (law < 0).any():
        worst = int(np.argmin(law))
        raise InvalidModelError(f"{name}[{worst}] is {law[worst]}; a probability is >= 0.")
    if abs(law.sum() - 1.0) > ROUNDING:
        raise InvalidModelError(
            f"{name} sums to {law.sum():.12g}, not 1; divide it by its sum if that is what you mean."
        )
    return law


def scale_rows(weight: FloatArray, matrix: Matrix) -> Matrix:
    """Return ``diag(weight) @ matrix`` in the matrix's own format."""
    if sparse.issparse(matrix):
        return sparse.csr_array(sparse.diags_array(weight) @ matrix)
    return weight[:, None] * matrix


def _index(where: tuple[int, ...]) -> str:
    return ", ".join(str(i) for i in where)
