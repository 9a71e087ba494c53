"""The recorder: every kind of operator captured on the CPU twin, linked, moved and compared bit for
bit with the function itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import twin_support
from torch.nn import functional as F

from pygraph import _engine
from pygraph.twin import operations, recorder
from pygraph.twin.recorder import NotRecordable


@pytest.fixture(autouse=True)
def on_the_twin() -> Iterator[None]:
    torch.manual_seed(0)
    with twin_support.twin_memory(), torch.no_grad():
        yield


def floats(*size: int) -> torch.Tensor:
    return torch.randn(*size)


def numbers(*size: int) -> torch.Tensor:
    return torch.randint(-9, 9, size)


def complexes(*size: int) -> torch.Tensor:
    return torch.randn(*size, dtype=torch.complex64)


def written(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x[index] = value
    return x


def into(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    out = torch.empty(x.shape)
    same = torch.add(x, y, out=out)
    return [out, same * 2, torch.mul(x, y, out=torch.empty(x.shape).t().contiguous().t())]


def in_place(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    z = x.add_(y).mul_(2)
    x[0].zero_()
    y.t()[1:].copy_(x.t()[:-1])
    return [z, x.clone(), y]


def list_of_tensors(x: torch.Tensor) -> list[torch.Tensor]:
    torch._foreach_add_([x, x[0]], [x.clone(), x[1].clone()])
    return [*torch._foreach_mul([x, x.t()], 3.0), *x.split(2), torch.stack(x.unbind(1))]


def metadata_in_place(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.clone()
    y.t_().unsqueeze_(0).squeeze_()
    return [y, y.contiguous()]


ENCODER = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "arithmetic": (lambda x, y: (x + y) * 2 - y / 3 + x**2, (floats(3, 4), floats(4))),
    "wrapped_number": (
        lambda x, y: [x * 3.7, 2 - y, y * True, x > 1, y // 2, x.add(y, alpha=0.5)],
        (floats(5).bfloat16(), numbers(5)),
    ),
    "comparison": (lambda x, y: torch.where(x > y, x, y.to(x.dtype)), (floats(6), numbers(6))),
    "bools": (lambda x: [~(x > 0), (x > 0).any(), x.isnan().all(), (x > 0).sum()], (floats(7),)),
    "integers": (lambda x: [x % 4, x << 1, x.bitwise_and(3), x.cumsum(0)], (numbers(3, 3),)),
    "int8": (lambda x: x.to(torch.int8) + 100, (numbers(9),)),
    "bfloat16": (lambda x, y: F.gelu(x @ y), (floats(8, 8).bfloat16(), floats(8, 8).bfloat16())),
    "float64": (lambda x: x.double().exp().sum(0), (floats(4, 4),)),
    "complexes": (
        lambda x, y: [x @ y, x.conj(), x.conj() * y, x.imag, x.conj().imag + 1, x.abs()],
        (complexes(3, 3), complexes(3, 3)),
    ),
    "conjugate_product": (lambda x, y: torch.mm(x.conj().t(), y), (complexes(3, 3),) * 2),
    "fft": (lambda x: torch.fft.rfft(x), (floats(2, 16),)),
    "views": (
        lambda x: [x.t(), x[1:, ::2], x.view(-1)[3:], x.expand(2, 4, 6), x.unsqueeze(1)],
        (floats(4, 6),),
    ),
    "views_of_results": (
        lambda x: [(x + 1).t(), (x * 2)[1:, ::2], (x - 1).as_strided((2, 2), (1, 3), 2)],
        (floats(4, 6),),
    ),
    "expanded": (lambda x: [(x + 1).expand(3, 5), x.expand(3, 5) + 1], (floats(5),)),
    "as_strided": (lambda x: x.as_strided((3, 3), (1, 2)).sum(1), (floats(12),)),
    "as_strided_scatter": (
        lambda x, y: [
            x[2:].as_strided_scatter(y, (3,), (2,), 4),
            x[2:].as_strided_scatter(y, (3,), (2,), storage_offset=3),
            x[2:].as_strided_scatter(y, (3,), (2,)),
        ],
        (floats(12), floats(3)),
    ),
    "permuted": (lambda x: x.permute(2, 0, 1).contiguous().reshape(-1, 4), (floats(2, 4, 6),)),
    "channels_last": (
        lambda x: (x * 2).to(memory_format=torch.channels_last).add(1),
        (floats(2, 3, 4, 4),),
    ),
    "zero_sizes": (
        lambda x: [x[:0] * 2, torch.cat([x[:0], x]), x[:, :0].sum(1), torch.empty(0, 3)],
        (floats(3, 3),),
    ),
    "no_dimensions": (
        lambda x, y: [x.sum() * y, y + 1, y.expand(3) * x[0, 0]],
        (floats(2, 2), torch.tensor(2.5)),
    ),
    "in_place": (in_place, (floats(3, 3), floats(3, 3))),
    "into": (into, (floats(3, 4), floats(3, 4))),
    "metadata_in_place": (metadata_in_place, (floats(3, 4),)),
    "list_of_tensors": (list_of_tensors, (floats(4, 4),)),
    "several_results": (
        lambda x: [*torch.max(x, 1), *torch.topk(x, 2), *torch.sort(x, 0), *torch.var_mean(x, 0)],
        (floats(4, 5),),
    ),
    "svd": (lambda x: list(torch.linalg.svd(x)), (floats(4, 3),)),
    "inverse": (lambda x: torch.linalg.inv(x + 5 * torch.eye(3)), (floats(3, 3),)),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.t() + torch.eye(3)), (floats(3, 3),)),
    "factories": (
        lambda x: [
            x + torch.arange(4),
            torch.zeros(2, 2).add_(x[0]),
            torch.ones_like(x) * torch.full((4,), 7.5),
            torch.linspace(0, 1, 4) + x,
            torch.tensor([1.0, 2.0, 3.0, 4.0]) * x,
            torch.tensor(0.5).add_(x[1]),
            torch.eye(4) + x.new_zeros(4),
        ],
        (floats(4),),
    ),
    "copies": (
        lambda x, y: [x.clone(), y.copy_(x), x.to(torch.float64), torch.empty(3, 3).copy_(x[0])],
        (floats(3, 3), floats(3, 3)),
    ),
    "concatenation": (lambda x, y: torch.cat([x, y.double(), x[:1]], 0), (floats(2, 3),) * 2),
    "indexing": (
        lambda x, i: [x[i], x[:, i], x.index_select(0, i), x.gather(0, i[None, :])],
        (floats(4, 4), torch.tensor([3, 0, 1])),
    ),
    "indexed_write": (
        lambda x, i: [written(x, i, 1.0), x.index_add(0, i, x[:2]), x.scatter(0, i[None], 5.0)],
        (floats(4, 4), torch.tensor([3, 0])),
    ),
    "masked_write": (lambda x: written(x, x > 0, -1.0), (floats(9),)),
    "masked_fill": (
        lambda x: x.masked_fill(torch.ones(4, 4).tril() == 0, -math.inf).softmax(-1),
        (floats(4, 4),),
    ),
    "embedding": (
        lambda i, w: [F.embedding(i, w), F.embedding(i, w, padding_idx=1)],
        (torch.randint(0, 5, (2, 3)), floats(5, 4)),
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (4,), w, b),
        (floats(3, 4), floats(4), floats(4)),
    ),
    "one_tensor_given_thrice": (
        lambda x: ENCODER.self_attn(x, x, x)[0],
        (floats(2, 5, 16),),
    ),
    "one_tensor_written_and_read": (lambda x: [x.add_(x), torch.mul(x, x, out=x)], (floats(3),)),
    "encoder": (
        lambda x: ENCODER(x),
        (floats(2, 5, 16),),
    ),
    "strides_that_fake_kernels_get_wrong": (
        lambda x: x.contiguous(memory_format=torch.channels_last).roll(1, 2),
        (floats(2, 4, 4, 4),),
    ),
    "operators_called_directly": (
        lambda x, y: [
            torch.ops.aten.add_.Tensor(x, y),
            torch.ops.aten.mul.out(x, y, out=torch.empty(3)) + 1,
        ],
        (floats(3), floats(3)),
    ),
    "group_norm": (lambda x: F.group_norm(x, 2), (floats(2, 4, 5),)),
    "batch_norm": (
        lambda x, m, v: F.batch_norm(x, m, v),
        (floats(2, 3, 4, 4), floats(3), floats(3).abs()),
    ),
    "batch_norm_training": (
        lambda x, m, v: F.batch_norm(x, m, v, training=True),
        (floats(2, 3, 4, 4), floats(3), floats(3).abs()),
    ),
    "convolutions": (
        lambda x, w: [
            F.conv2d(x, w, padding=1),
            F.conv2d(x.to(memory_format=torch.channels_last), w, stride=2),
            F.conv_transpose2d(x, w.transpose(0, 1), stride=2),
            F.conv1d(x[:, :, 0], w[:, :, 0]),
        ],
        (floats(2, 3, 8, 8), floats(5, 3, 3, 3)),
    ),
    "resampling": (
        lambda x: [
            F.interpolate(x, scale_factor=2),
            F.interpolate(x, scale_factor=2, mode="bilinear"),
            F.interpolate(x, size=(5, 7), mode="bicubic"),
            F.avg_pool2d(x, 2),
            *F.max_pool2d(x, 3, return_indices=True),
            F.adaptive_avg_pool2d(x, 1),
            F.pad(x, (1, 1, 1, 1), mode="reflect"),
            F.pixel_shuffle(x, 2),
        ],
        (floats(2, 4, 6, 6),),
    ),
    "attention": (
        lambda q, k, v: [
            F.scaled_dot_product_attention(q, k, v),
            F.scaled_dot_product_attention(q, k, v, is_causal=True),
            F.scaled_dot_product_attention(q[0], k[0], v[0]),
        ],
        (floats(2, 4, 8, 16), floats(2, 4, 8, 16), floats(2, 4, 8, 16)),
    ),
    "dropout_off": (lambda x: F.dropout(x, 0.5, training=False) + F.dropout(x, 0.0), (floats(9),)),
    "loss": (
        lambda x, i: [F.cross_entropy(x, i), F.mse_loss(x, x + 1), F.log_softmax(x, 1)],
        (floats(4, 5), torch.randint(0, 5, (4,))),
    ),
    "no_tensor_results": (lambda x: [x + 1, None, 3, 2.5], (floats(3),)),
    "the_argument": (lambda x: [x, x.add_(1), x[1:]], (floats(3),)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_are_those_of_the_function(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    twin_support.check(lambda given: function(*given), inputs)


@pytest.mark.parametrize("name", ["arithmetic", "attention", "convolutions", "views"])
def test_in_inference_mode_too(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    with torch.inference_mode():
        twin_support.check(lambda given: function(*given), [x.clone() for x in inputs])


def test_copies_and_fills_are_the_drivers_own_nodes() -> None:
    moved = twin_support.check(lambda given: torch.zeros(3).add_(given[0]).clone(), [floats(3)])
    assert moved.linked.nodes == 3
    assert moved.linked.kernels == 1


def test_numbers_come_from_the_block() -> None:
    """Captures of one function with other numbers launch the same operations."""
    space = _engine.PhantomSpace(0, 1 << 30, 1 << 21, twin=True)
    x = floats(3)
    before = None
    for number in (2.5, 3.5):
        space.begin(_engine.Placement.A)
        stream = _engine.Stream(twin=True)
        recorder.record(lambda given, n=number: given[0] * n + n, [x], space, stream)  # type: ignore[misc]
        assert before is None or len(operations._interned) == before
        before = len(operations._interned)
    for number in (2.5, 3.5):
        twin_support.check(lambda given, n=number: given[0] * n + n, [x])


REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "item": (lambda x: x[0].item(), "aten._local_scalar_dense.default"),
    "truth": (lambda x: x if x[0] > 0 else -x, "aten._local_scalar_dense.default"),
    "nonzero": (lambda x: x.nonzero(), "aten.nonzero.default"),
    "unique": (lambda x: x.unique(), "aten._unique2.default"),
    "mask": (lambda x: x[x > 0], "aten.index.Tensor"),
    "equal": (lambda x: torch.equal(x, x), "aten.equal.default"),
    "repeats": (lambda x: x.repeat_interleave(x.long()), "aten.repeat_interleave.Tensor"),
    "generator": (
        lambda x: torch.randperm(4, generator=torch.Generator()),
        "aten.randperm.generator",
    ),
    "list": (lambda x: x.tolist(), "Tensor.tolist"),
    "array": (lambda x: x.numpy(), "Tensor.numpy"),
    "sparse": (lambda x: x.to_sparse(), "aten._to_sparse.default"),
    "resize": (lambda x: x.resize_(100), "aten.resize_.default"),
    "in_front": (
        lambda x: x[2:].as_strided_scatter(x[:1], (1,), (1,), 1),
        "aten.as_strided_scatter.default",
    ),
    "resized_out": (
        lambda x: torch.add(x, 1, out=torch.empty(2)),
        "aten.add.out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_values_is_refused(name: str) -> None:
    function, operator = REFUSED[name]
    space = _engine.PhantomSpace(0, 1 << 30, 1 << 21, twin=True)
    space.begin(_engine.Placement.A)
    stream = _engine.Stream(twin=True)
    x = floats(4)
    state = torch.get_rng_state()
    with pytest.raises(NotRecordable, match=operator) as refusal:
        recorder.record(lambda given: function(given[0]), [x], space, stream)
    assert refusal.value.operator == operator
    assert torch.equal(torch.get_rng_state(), state)
    twin_support.check(lambda given: given[0] + 1, [x])  # the stream and the modes are as before


def test_foreign_memory_is_read_but_not_written() -> None:
    weight = floats(4)
    moved = twin_support.check(lambda given: given[0] * weight, [floats(4)])
    assert any(kept is weight for kept in moved.a.keep)
    x = floats(4)
    weight.add_(1)  # a replay reads it where it is
    assert torch.equal(moved([x])[0], x * weight)
    with pytest.raises(NotRecordable, match="neither an argument nor made"):
        twin_support.Moved(lambda given: weight.add_(given[0]), [x])
    with pytest.raises(NotRecordable, match="neither an argument nor made"):
        twin_support.Moved(
            lambda given: F.batch_norm(given[0], weight, weight, training=True), [floats(2, 4)]
        )


def test_an_error_of_the_function_is_its_own() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        twin_support.Moved(lambda given: given[0] + given[1], [floats(3), floats(4)])
    with pytest.raises(ZeroDivisionError):
        twin_support.Moved(lambda given: 1 / 0, [floats(3)])


def test_a_failing_kernel_fails_the_launch_and_says_why() -> None:
    moved = twin_support.Moved(
        lambda given: F.embedding(given[0], given[1]), [torch.tensor([1]), floats(3, 2)]
    )
    with pytest.raises(_engine.DriverError, match="CUDA_ERROR_LAUNCH_FAILED"):
        moved([torch.tensor([7]), floats(3, 2)])
    assert "index out of range" in _engine.twin_last_error()
    assert _engine.twin_last_error() == ""
    weight = floats(3, 2)
    assert torch.equal(moved([torch.tensor([2]), weight])[0], weight[2:])


def test_replays_do_not_depend_on_modes_around_them() -> None:
    x, y = floats(4, 4), floats(4, 4)
    moved = twin_support.Moved(lambda given: given[0] @ given[1], [x, y])
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad():
        (found,) = moved([x, y])
    assert torch.equal(found, x @ y)
    assert not found.requires_grad


def test_layouts_follow_the_default_dtype() -> None:
    def function(given: list[Any]) -> Any:
        return torch.full((2,), 1 / 3) * given[0]

    x = torch.randn(2, dtype=torch.float64)
    twin_support.check(function, [x])
    torch.set_default_dtype(torch.float64)
    try:
        twin_support.check(function, [x])
    finally:
        torch.set_default_dtype(torch.float32)


def test_strides_are_the_real_kernels() -> None:
    """Fake kernels choose others for dimensions of one element or none, among others."""
    empty, single = torch.zeros(1, 0, 1), torch.zeros(5, 1, dtype=torch.uint8).t()

    def function(given: list[Any]) -> list[Any]:
        x, y, z = given
        both = torch.logical_and(z.sum(), z.t())
        return [torch.where(x > 0, x, 2), torch.where(y > 0, y, 3), y.t() + 1, both]

    captured = twin_support.Moved(function, [empty, single, floats(3, 3)]).a.outputs
    expected = function([empty, single, floats(3, 3)])
    assert [output.stride() for output in captured] == [output.stride() for output in expected]
