"""Operator families that are moved to new addresses. The modules register theirs when imported;
those that might upset a process come last."""

from families import (  # noqa: I001  the order of the tests
    products,
    convolutions,
    layers,
    images,
    attention,
    recurrent,
    elementwise,
    reductions,
    ordering,
    indexing,
    random_numbers,
    lists,
    numerics,
    kernels,
    compiled,
    refused,
)
from families.registry import FAMILIES

__all__ = [
    "FAMILIES",
    "attention",
    "compiled",
    "convolutions",
    "elementwise",
    "images",
    "indexing",
    "kernels",
    "layers",
    "lists",
    "numerics",
    "ordering",
    "products",
    "random_numbers",
    "recurrent",
    "reductions",
    "refused",
]
