"""Triton kernels that the user launches. Triton is imported only when a case is built."""

from __future__ import annotations

from families.registry import Case, Make, family


@family(
    "Triton, pointwise",
    "a kernel launched by the user, a scalar beside the addresses",
    gpu_only=True,
)
def _pointwise(make: Make) -> Case:
    from families import triton_kernels

    return Case(triton_kernels.pointwise, lambda: [make.randn(3001), make.randn(3001)])


@family("Triton, softmax", "two launches with scratch memory between", gpu_only=True)
def _softmax(make: Make) -> Case:
    from families import triton_kernels

    return Case(
        lambda x: triton_kernels.softmax(triton_kernels.pointwise(x, x)),
        lambda: [make.randn(20, 100)],
    )


@family(
    "Triton, TMA descriptors made on the device",
    "descriptors in scratch memory, written by the kernel itself",
    gpu_only=True,
)
def _device_descriptors(make: Make) -> Case:
    from families import triton_kernels

    return Case(triton_kernels.device_descriptors, lambda: [make.randn(64, 96)])


@family(
    "Triton, TMA descriptors made on the host",
    "the address is the first word of a 128-byte descriptor by value",
    gpu_only=True,
)
def _host_descriptors(make: Make) -> Case:
    from families import triton_kernels

    return Case(triton_kernels.host_descriptors, lambda: [make.randn(64, 96)])
