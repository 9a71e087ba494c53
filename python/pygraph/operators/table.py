"""What is known of operators, each fact with its source.

An operator stands here by the name of its packet, "mm", with all of its overloads, or by that of
one overload, "empty.memory_format". It has no namespace: prims and Inductor's extern_kernels have
operators of ATen's names, which do the same. Who asks says which namespaces are meant. Of an
operator that is not here nothing is known. What torch says itself (tags, schemas, is_view) is asked
of torch, and not repeated.

No torch is needed to read this: a plan explains itself without one.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import Literal


class Property(enum.Enum):
    """What can be known of an operator."""

    ADDRESSES_BY_SHAPE = "what its kernels read and write follows from shapes, and not from values"
    KEEPS_VALUES = "returns one tensor, which holds values of its first argument and no others"
    KEEPS_BITS = "returns one tensor, which holds its argument's bits as values of another type"
    COUNTS_FROM_STORAGE = "takes an offset that counts from the start of its argument's storage"
    KEEPS_OFFSET = "returns a tensor with the storage offset of its first argument"
    LOOKS_UP = "takes those rows of its first argument that the values of its second name"
    RANKS = "returns values, and where they stood along a dimension; stays within its memory"
    INDEXES_UNCHECKED = "its kernels index by values and do not check them"
    BREAKS_ITS_LIBRARY = "a capture that it fails in leaves its library unusable in the process"
    SEPARABLE = "computes several results one after another, and can be called for one at a time"
    RETURNS_STATE = "returns the state of its dropout, unwritten where nothing is dropped"
    ALLOCATES = "returns memory of its own, in which nothing has been written"
    MAKES_ZEROS = "returns memory of its own, and zeros in it"
    MAKES_OF_NUMBER = "returns memory of its own, and a number of Python's in it"
    WRITES_ZEROS = "writes zeros into its first argument, and returns that"
    COPIES = "returns memory of its own, and the first argument's values in it"
    COPIES_INTO = "writes the values of its second argument into its first, and returns that"
    LIFTS = "lends a graph a constant of the program's"
    ALIASES_UNDECLARED = "returns a view of its first argument, which its schema does not say"
    READS_NO_DATA = "asks tensors what they are, and not what they hold, and returns none"
    RESIZES = "changes the size of its first argument's memory"
    MOVES_MEMORY = "copies a tensor, which may be to another device"
    TAKES_FROM_HOST = "takes indices or values of the host for a tensor of the device"
    SHAPED_BY_MASKS = "has results whose shapes depend on values where an argument is a mask"
    LENDS_GENERATOR = "runs an operator that draws random numbers, and keeps or sets the state"
    SPLITS_BY_TABLE = "copies parts of a tensor; its kernel reads their addresses in device memory"
    JOINS_BY_TABLE = "copies tensors into one; its kernel reads their addresses in device memory"
    CALLS_OTHERS = "is Python code of other operators; its schema has no word of what it writes"
    CONTROL_FLOW = "runs a graph or not, or several times, as a tensor's value says"


@dataclass(frozen=True)
class Fact:
    """The same properties of some operators, known from the same place."""

    properties: frozenset[Property]
    operators: frozenset[str]
    source: str
    """Files of torch (where it was read), or a measurement."""


def _fact(properties: Property | set[Property], operators: str, source: str) -> Fact:
    several = properties if isinstance(properties, set) else {properties}
    return Fact(frozenset(several), frozenset(operators.split()), source)


_P = Property
TABLE = (
    # ------------------------------------------------------------------------ where kernels read
    _fact(
        _P.ADDRESSES_BY_SHAPE,
        "_addmm_activation addmm baddbmm bmm convolution mm",
        "aten/src/ATen/native/cuda/Blas.cpp, aten/src/ATen/native/Convolution.cpp: libraries take "
        "pointers to matrices, sizes and strides",
    ),
    _fact(
        _P.ADDRESSES_BY_SHAPE,
        "bias_addmm",
        "torch/_inductor/kernel/mm.py: a choice of extern_kernels that calls addmm",
    ),
    _fact(
        _P.ADDRESSES_BY_SHAPE,
        "_native_multi_head_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention "
        "_transformer_encoder_layer_fwd",
        "aten/src/ATen/native/transformers/cuda/attention.cu, transformers/transformer.cpp: a mask "
        "is added, and chooses no address",
    ),
    _fact(
        _P.ADDRESSES_BY_SHAPE,
        "_log_softmax _softmax amax amin avg_pool2d mean sum var_mean",
        "aten/src/ATen/native/cuda: Reduce.cuh, SoftMax.cu, AveragePool2d.cu",
    ),
    _fact(
        _P.ADDRESSES_BY_SHAPE,
        "_native_batch_norm_legit _native_batch_norm_legit_no_training native_batch_norm "
        "native_group_norm native_layer_norm",
        "aten/src/ATen/native/cuda: Normalization.cu, group_norm_kernel.cu, layer_norm_kernel.cu",
    ),
    _fact(
        {_P.ADDRESSES_BY_SHAPE, _P.KEEPS_VALUES},
        "_unsafe_view alias detach expand permute reshape select slice squeeze t transpose "
        "unsqueeze view",
        "aten/src/ATen/native/TensorShape.cpp: views, and a copy where reshape needs one",
    ),
    _fact(
        _P.KEEPS_BITS,
        "view.dtype",
        "aten/src/ATen/native/TensorConversions.cpp: view_dtype",
    ),
    _fact(
        _P.COUNTS_FROM_STORAGE,
        "as_strided as_strided_ as_strided_copy as_strided_scatter",
        "aten/src/ATen/native/TensorShape.cpp: the view stands at storage_offset, wherever in the "
        "storage its argument does",
    ),
    _fact(
        _P.KEEPS_OFFSET,
        "as_strided_scatter.default diagonal_scatter.default select_scatter.default "
        "slice_scatter.default",
        "aten/src/ATen/native/TensorShape.h, clone_preserve_strides: the first argument is cloned "
        "with all of its storage",
    ),
    _fact(  # several tensors: none of them is the values
        _P.ADDRESSES_BY_SHAPE,
        "split split_with_sizes unbind",
        "aten/src/ATen/native/TensorShape.cpp: views",
    ),
    _fact(
        {_P.ADDRESSES_BY_SHAPE, _P.KEEPS_VALUES},
        "clone",
        "aten/src/ATen/native/cuda/Copy.cu",
    ),
    _fact(  # values of several tensors, or of none
        _P.ADDRESSES_BY_SHAPE,
        "cat constant_pad_nd empty full stack",
        "aten/src/ATen/native: cuda/Shape.cu, PadNd.cpp, TensorFactories.cpp, TensorShape.cpp",
    ),
    _fact(
        _P.ADDRESSES_BY_SHAPE,
        "bernoulli exponential native_dropout normal rand rand_like randint randint_like randn "
        "randn_like uniform",
        "aten/src/ATen/native/cuda: DistributionTemplates.h, Dropout.cu",
    ),
    _fact(
        _P.RANKS,
        "sort topk",
        "aten/src/ATen/native/cuda: Sort.cu, TensorTopK.cu; NaN is the largest value",
    ),
    _fact(
        _P.LOOKS_UP,
        "embedding",
        "aten/src/ATen/native/Embedding.cpp: index_select of the weight",
    ),
    _fact(
        _P.INDEXES_UNCHECKED,
        "_unsafe_index _unsafe_masked_index",
        "torch/_inductor/lowering.py: lowered to loads with check=False",
    ),
    # ---------------------------------------------------------------------- what they do to memory
    _fact(
        _P.ALLOCATES,
        "empty.memory_format empty_strided.default empty_permuted.default empty_like.default "
        "new_empty.default new_empty_strided.default",
        "aten/src/ATen/native/TensorFactories.cpp",
    ),
    _fact(
        _P.MAKES_ZEROS,
        "zeros.default zeros_like.default new_zeros.default",
        "aten/src/ATen/native/TensorFactories.cpp",
    ),
    _fact(
        _P.MAKES_OF_NUMBER,
        "scalar_tensor.default",
        "aten/src/ATen/native/TensorFactories.cpp",
    ),
    _fact(_P.WRITES_ZEROS, "zero_.default", "aten/src/ATen/native/Fill.cpp"),
    _fact(
        _P.COPIES,
        "clone.default _to_copy.default",
        "aten/src/ATen/native: TensorFactories.cpp, TensorConversions.cpp, where the type or the "
        "layout may become another",
    ),
    _fact(_P.COPIES_INTO, "copy_.default", "aten/src/ATen/native/Copy.cpp"),
    _fact(
        _P.LIFTS,
        "lift_fresh.default lift_fresh_copy.default lift.default",
        "aten/src/ATen/native/native_functions.yaml, beside lift",
    ),
    _fact(
        _P.ALIASES_UNDECLARED,
        "_unsafe_view.default",
        "aten/src/ATen/native/TensorShape.cpp; in native_functions.yaml the result is no alias",
    ),
    _fact(
        _P.READS_NO_DATA,
        "_fused_sdp_choice.default is_same_size.default is_pinned.default "
        "_assert_tensor_metadata.default",
        "aten/src/ATen/native/native_functions.yaml: they return a number, a bool or nothing, of "
        "sizes, types and devices",
    ),
    _fact(
        _P.RESIZES,
        "resize_.default resize_as_.default",
        "aten/src/ATen/native/Resize.cpp",
    ),
    # ----------------------------------------------------------------------- how they are captured
    _fact(
        _P.BREAKS_ITS_LIBRARY,
        "_linalg_eigh _linalg_eigvals _linalg_svd linalg_eig linalg_eigvals linalg_lstsq",
        "measured on an H200 with CUDA 13.0: cusolverDnXsyevd fails in a capture, and from then on "
        "outside of one too. The others wait for the device in cuSOLVER as it does "
        "(aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp)",
    ),
    _fact(
        _P.SEPARABLE,
        "convolution_backward",
        "aten/src/ATen/native/cudnn/ConvShared.cpp: cuDNN is called once per gradient; "
        "aten/src/ATen/native/Convolution.cpp: the bias has its gradient from a sum of its own. "
        "It is known of no other operator, and of this one where SEPARABLE_IF says so",
    ),
    _fact(
        _P.RETURNS_STATE,
        "_scaled_dot_product_flash_attention _flash_attention_forward "
        "_scaled_dot_product_efficient_attention _efficient_attention_forward "
        "_scaled_dot_product_cudnn_attention _cudnn_attention_forward",
        "aten/src/ATen/native/transformers/cuda/attention.cu: without dropout it is uninitialised "
        "memory, or what stood on the stack, on the host or on the device as torch likes",
    ),
    # -------------------------------------------------------------------- what stands in their way
    _fact(
        _P.MOVES_MEMORY,
        "_copy _to_copy copy copy_ device_put",
        "aten/src/ATen/native/native_functions.yaml, torch/_prims/__init__.py: device_put; "
        "_copy in namespaces that are not torch's",
    ),
    _fact(
        _P.TAKES_FROM_HOST,
        "_unsafe_index _unsafe_index_put copy copy_ index index_put select_scatter slice_scatter",
        "aten/src/ATen/native/IndexingUtils.h, Copy.cpp, TensorConversions.cpp: indices and "
        "sources are copied to the device of what is indexed or written",
    ),
    _fact(
        _P.SHAPED_BY_MASKS,
        "index",
        "aten/src/ATen/native/IndexingUtils.h, expandTensors: a mask becomes its nonzero() first; "
        "the tag dynamic_output_shape of native_functions.yaml does not tell",
    ),
    _fact(
        _P.LENDS_GENERATOR,
        "graphsafe_run_with_rng_state run_and_save_rng_state run_with_rng_state",
        "torch/_prims/rng_prims.py",
    ),
    _fact(
        _P.SPLITS_BY_TABLE,
        "split_with_sizes_copy",
        "aten/src/ATen/native/cuda/TensorShape.cu, pack_vecs",
    ),
    _fact(
        _P.JOINS_BY_TABLE,
        "_chunk_cat chunk_cat",
        "aten/src/ATen/native/cuda/TensorShape.cu, pack_vecs",
    ),
    _fact(
        _P.CALLS_OTHERS,
        "all_gather_copy_in",
        "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
    ),
    _fact(
        _P.CONTROL_FLOW,
        "cond scan while_loop",
        "torch/_higher_order_ops: cond.py, scan.py, while_loop.py",
    ),
)


@functools.cache
def operators(that: Property) -> frozenset[str]:
    """The operators that are known to have a property."""
    return frozenset(name for fact in TABLE if that in fact.properties for name in fact.operators)


@dataclass(frozen=True)
class SeparableIf:
    """When a call may be separated. Besides, its tensors must have the layout that the library
    wants: others are converted first, for several results at once."""

    libraries: frozenset[str]
    """Which of torch's backends (torch/csrc/Module.cpp, _ConvBackend) compute them apart."""
    fewest_dimensions: int
    """Of the input."""


#: By operator that is SEPARABLE. A one-dimensional convolution is viewed as a two-dimensional one
#: inside (aten/src/ATen/native/Convolution.cpp), and is left as it is.
SEPARABLE_IF = {
    "convolution_backward": SeparableIf(frozenset(("Cudnn", "CudnnTranspose")), 4),
}

#: Arguments that operators write though their schemas in native_functions.yaml do not mark them,
#: and the argument that has to be true for it, if any (aten/src/ATen/native/Normalization.cpp,
#: aten/src/ATen/native/cuda/Normalization.cu, aten/src/ATen/native/cudnn/BatchNorm.cpp).
UNDECLARED_WRITES: dict[str, tuple[tuple[str, ...], str | None]] = {
    **{
        f"{name}.default": (("running_mean", "running_var"), "training")
        for name in (
            "native_batch_norm", "_batch_norm_impl_index", "batch_norm", "cudnn_batch_norm",
            "miopen_batch_norm",
        )
    },
    **{
        f"{name}.default": (("running_mean", "running_var"), None)
        for name in (
            "batch_norm_update_stats", "batch_norm_gather_stats",
            "batch_norm_gather_stats_with_counts",
        )
    },
}  # fmt: skip

#: Operators whose names begin so address by shape: they compute by element, or reduce, each tensor
#: of a list (aten/src/ATen/native/cuda: ForeachFunctors.cuh, ForeachReduceOp.cu).
FOR_EACH = "_foreach_"

# What arguments and results are, by their names in any operator's schema
# (aten/src/ATen/native/native_functions.yaml).

#: A random state: attention returns it for its backward, which takes it and draws the same dropout
#: mask from it. Captured, some kernels return it and read it on the device, uncaptured on the host
#: (aten/src/ATen/native/transformers/cuda/attention.cu, "Note [Seed and Offset Device]"). An
#: address of the host that is read on the device ends the process, so names tell, and no list of
#: operators: extensions bring attention of their own.
SEEDS = frozenset(("philox_seed", "philox_offset", "rng_state"))
#: What operators that RETURNS_STATE holds of call it among their results. "unused" stands
#: beside "rng_state", where other kernels return an offset.
STATES = SEEDS | {"unused"}
#: What operators that COUNTS_FROM_STORAGE holds of call their offset.
STORAGE_OFFSET = "storage_offset"
#: The share of attention's weights that is dropped.
DROPOUT = "dropout_p"
#: Where one of these is 0 or False, an operator that is tagged as random draws nothing.
DRAWS_IF = frozenset((DROPOUT, "train", "training"))
#: Namespaces of collective operations (torch/distributed/_functional_collectives.py;
#: torch/csrc/distributed/c10d: Functional.cpp, Ops.cpp, symm_mem; torch/distributed/tensor).
COLLECTIVES = frozenset(
    (
        "_c10d_functional",
        "_c10d_functional_autograd",
        "_dtensor",
        "c10d",
        "c10d_functional",
        "symm_mem",
    )
)
#: What of them is between two ranks.
POINT_TO_POINT = frozenset(("batch_p2p_ops", "irecv", "isend", "recv_", "recv_any_source_", "send"))
#: What is in them and keeps no rank waiting.
NO_COLLECTIVES = frozenset(
    ("_wrap_tensor_autograd", "check_for_nan", "memset32_", "stream_write_value32_", "wait_tensor")
)

Obstacle = Literal[
    "library state",
    "host seed",
    "host value",
    "data-dependent shape",
    "control flow",
    "cpu operator",
    "host to device",
    "device to host",
    "cpu input",
    "collective",
    "random numbers",
]
"""The kinds of what stands in a capture's way, or needs care in it; the most serious first."""
