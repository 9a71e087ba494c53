"""The modes that decide what an operator does beside its arguments: gradients, autocast, precision,
determinism, which library's kernels it takes, those that a program pushes on torch's stacks, and
transforms of whole functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pygraph import _engine
from pygraph.torch_private import dynamo
from pygraph.torch_private.names import attribute, bound, private

_dispatch_modes = bound("torch._C:_len_torch_dispatch_stack")
_function_modes = bound("torch._C:_len_torch_function_stack")
_function_mode = bound("torch._C:_get_function_stack_at")
_transform = bound("torch._C._functorch:peek_interpreter_stack")
_hooks_on_saved = bound("torch._C._autograd:_top_saved_tensors_default_hooks")
_traced = bound("torch._C:_is_tracing")
_forward_level = attribute("_current_level", torch.autograd.forward_ad)

#: What torch.backends and torch.nn.attention.sdpa_kernel set, and torch.autograd.detect_anomaly.
_CHOICES = [
    bound("torch._C:_get_cudnn_enabled"),
    bound("torch._C:_get_cudnn_benchmark"),
    bound("torch._C:_get_cudnn_deterministic"),
    bound("torch._C:_get_cudnn_allow_tf32"),
    bound("torch._C:_get_cudnn_sdp_enabled"),
    bound("torch._C:_get_flash_sdp_enabled"),
    bound("torch._C:_get_mem_efficient_sdp_enabled"),
    bound("torch._C:_get_math_sdp_enabled"),
    torch.is_anomaly_enabled,
]
#: By modules of torch: hooks on everything, which programs register there.
HOOKS = {
    "torch.nn.modules.module": [
        bound("torch.nn.modules.module:_global_forward_hooks"),
        bound("torch.nn.modules.module:_global_forward_pre_hooks"),
        bound("torch.nn.modules.module:_global_backward_hooks"),
        bound("torch.nn.modules.module:_global_backward_pre_hooks"),
    ],
    "torch.optim.optimizer": [
        bound("torch.optim.optimizer:_global_optimizer_pre_hooks"),
        bound("torch.optim.optimizer:_global_optimizer_post_hooks"),
    ],
}
#: And variables that programs set by functions there.
VARIABLES = {
    "torch.nn.utils.parametrize": {"_cache_enabled"},
    "torch.backends.mha": {"_is_fastpath_enabled"},
}

#: Questions, and their answers where nobody sees an operator before torch does.
_NOT_SEEN_BY_OTHERS = [
    (_dispatch_modes, None, 0),
    (_transform, None, None),
    (_hooks_on_saved, True, None),
    (_forward_level, torch.autograd.forward_ad, -1),
]
_nobody_sees = _engine.ModeGuard(_NOT_SEEN_BY_OTHERS)


def same_modes() -> _engine.ModeGuard:
    """What tells whether the modes are those of now, which must not be foreign."""
    choices = [(ask, None, answer) for ask in _CHOICES if (answer := _answer(ask)) is not None]
    return _engine.ModeGuard([*_of_compiled_code(), *choices])


def same_for_compiled_code() -> _engine.ModeGuard:
    """The same of those modes alone that say which compiled code runs, or what its results are."""
    stance = dynamo.stance()
    more = [(_traced, None, False), *([] if stance is None else [stance])]
    return _engine.ModeGuard([*_of_compiled_code(), *more])


def _of_compiled_code() -> list[tuple[Any, Any, Any]]:
    unchanged = private("torch._C._dynamo.guards:GlobalStateGuard")().check
    devices = _devices()
    function_modes = (_devices, None, devices) if devices else (_function_modes, None, 0)
    inference = torch.is_inference_mode_enabled
    return [
        (unchanged, None, True),
        (inference, None, inference()),
        *_NOT_SEEN_BY_OTHERS,
        function_modes,
    ]


def _answer(ask: Callable[[], bool]) -> bool | None:
    """None where there is none: torch has no such question, or two settings contradict (its two
    ways of allowing TF32)."""
    try:
        return ask()
    except RuntimeError:
        return None


def foreign_modes() -> bool:
    """Whether others see operators or functions before torch does, but for default devices
    (torch.device as a context), or what autograd saves."""
    return _seen_by_others() or _devices() is None


def _seen_by_others() -> bool:
    """Dispatch modes, torch.func, forward-mode differentiation, and hooks on saved tensors, as
    torch.utils.checkpoint has."""
    return not _nobody_sees()


def _devices() -> tuple[torch.device, ...] | None:
    """The default devices on the stack of function modes; None if there is anything else."""
    count = _function_modes()
    if not count:
        return ()
    modes: list[Any] = [_function_mode(number) for number in range(count)]
    kind = private("torch.utils._device:DeviceContext")
    return tuple(mode.device for mode in modes) if all(isinstance(m, kind) for m in modes) else None
