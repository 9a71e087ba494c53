"""Dynamo. It takes seconds to import, so its names are looked up when they are asked for, but for
one that is in C."""

from __future__ import annotations

import contextlib
import gc
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any, cast

from pygraph.torch_private.names import Missing, bound, place, private

LOGGERS = ("torch._dynamo", "torch._functorch")
WAY_IN = "torch/_dynamo/convert_frame.py"
"""The file through which Dynamo is asked to compile a frame."""
COMPILED = ("__compiled_fn", "__resume_at", "___")
"""How the functions are called that code names which stands in place of a frame's."""
RESUMED = "torch_dynamo_resume_in"
"""How the name of a function begins that goes on behind a graph break."""
MARKS = "_dynamo_"
"""How the names of the attributes begin that Dynamo gives tensors."""
ORIGINAL = "_torchdynamo_orig_callable"
"""Where what torch.compile returns for a function has that function."""
set_asked = bound("torch._C._dynamo.eval_frame:set_eval_frame")
"""Sets who is asked about frames of this thread (None: nobody), and returns who was."""
_FILE = "torch/_dynamo/eval_frame.py"


def config() -> Any:
    return private("torch._dynamo:config")


def without_limits() -> AbstractContextManager[None]:
    """One function may be compiled as often as it takes."""
    settings = config()
    name = "recompile_limit" if hasattr(settings, "recompile_limit") else "cache_size_limit"
    many: AbstractContextManager[None] = settings.patch(**{name: 1024, f"accumulated_{name}": 4096})
    return many


def keeping_generators() -> AbstractContextManager[None]:
    """Compiling, which may draw random numbers, leaves torch's generators as they were."""
    context: AbstractContextManager[None] = private("torch._dynamo.utils:preserve_rng_state")()
    return context


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in whose calls Dynamo looks at no frame."""
    disabled: Callable[..., Any] = private("torch._dynamo:disable")(function)
    return disabled


def aot_autograd() -> Any:
    return private("torch._dynamo.backends.common:aot_autograd")


def graph_breaks() -> list[tuple[Any, str]]:
    """Stack and text of each break so far."""
    reasons = private("torch._dynamo.utils:graph_break_reasons")
    return [(each.user_stack, each.reason) for each in reasons]


def forget_breaks(kept: int) -> None:
    """Leaves the first `kept` of them."""
    del private("torch._dynamo.utils:graph_break_reasons")[kept:]


def break_behind(graph_module: Any) -> tuple[Any, str] | None:
    """Stack and text of the break that Dynamo ended this graph for, if one did."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    return reason.user_stack, reason.reason


def is_compiled(function: Any) -> bool:
    """Whether torch.compile has returned it."""
    code = getattr(function, "__code__", None)
    in_place = getattr(function, "_compiled_call_impl", None) is not None
    return in_place or hasattr(function, "dynamo_ctx") or _is_wrapper(code)


def module_behind(function: Any) -> Any:
    """The module that torch.compile was given; others are returned as they are."""
    return getattr(function, "_orig_mod", function)


@dataclass(frozen=True)
class CompiledFrame:
    """One compilation by Dynamo."""

    name: str
    """The function's."""
    file: str
    line: int
    because: str | None
    """Which guard of an earlier compilation failed; None: it is the first."""


def compiled_frames(marks: Sequence[Any] = ()) -> tuple[list[CompiledFrame], list[Any]]:
    """The last compilations (torch keeps 64) that are not among the `marks`, and marks by which to
    ask for later ones."""
    metrics = private("torch._dynamo.utils:get_compilation_metrics")()
    known = {id(each) for each in marks}
    found = [
        CompiledFrame(
            each.co_name or "?", each.co_filename or "?", each.co_firstlineno or 0, reason
        )
        for each in metrics
        if id(each) not in known
        for reason in [getattr(each, "recompile_reason", None)]
    ]
    return found, list(metrics)


def where_reads_are_kept() -> tuple[tuple[Any, str], tuple[Any, str]] | None:
    """Where the function stands that compiles a frame, and the method that traces calls of methods
    of tensors, "item" among them. None: this torch lacks one of them, or has another."""
    try:
        compiles = place("torch._dynamo.convert_frame:_compile")
        reads = place("torch._dynamo.variables.tensor:TensorVariable.call_method")
    except Missing:
        return None
    parameters = list(inspect.signature(getattr(*compiles)).parameters)
    return (compiles, reads) if tuple(parameters[5:8]) == _COMPILED_WITH else None


_COMPILED_WITH = ("compiler_fn", "one_graph", "export")
"""Parameters five to seven of the function that compiles a frame."""


@dataclass(frozen=True)
class Asked:
    """What a frame is compiled with."""

    backend: Callable[..., Any]
    options: Mapping[str, Any]
    in_one_graph: bool
    """Dynamo keeps all it can in one graph, or raises."""


def asked_for(args: Sequence[Any]) -> Asked:
    """The same, from the arguments of the function that compiles a frame."""
    backend, one_graph, export = args[5:8]
    backend = private("torch._dynamo.eval_frame:innermost_backend")(backend)
    given = getattr(backend, "kwargs", {})
    return Asked(getattr(backend, "compiler_fn", backend), given, bool(one_graph or export))


def line_of(translator: Any) -> tuple[str, int]:
    """The line that Dynamo traces."""
    return translator.f_code.co_filename, translator.lineno


def traced_again(reason: str) -> Exception:
    """Raised by a backend, it has Dynamo trace the frame from its beginning."""
    error: Exception = private("torch._dynamo.exc:TensorifyScalarRestartAnalysis")(
        restart_reason=reason
    )
    return error


def error_within(error: Exception) -> Exception:
    """Dynamo wraps what comes from tracing a backward: its own first line says nothing."""
    within: Exception = getattr(error, "inner_exception", error)
    return within


def code_around_backend() -> CodeType:
    """The code of what Dynamo puts around a backend's function."""
    return cast(CodeType, private("torch._dynamo:disable")(lambda: None).__code__)


@dataclass(frozen=True)
class Running:
    """A callable that torch.compile has returned, while a call of it is on its way."""

    hooks: list[Any]
    """What torch calls in front of each call, and what that returns behind it: the very list
    (`enter_exit_hooks` of eval_frame._TorchDynamoContext)."""
    code: CodeType
    """Of the frame that calls them."""
    variables: tuple[str, str] = ("args", "kwargs")
    """What the caller's arguments are called there, by position and by name."""


def running(frames: Sequence[FrameType]) -> Running | None:
    """The callable that one of `frames` runs; None where this torch runs callables in another
    way."""
    frame = _frame_of_wrapper(frames)
    hooks = None if frame is None else _hooks_in(frame)
    return None if frame is None or hooks is None else Running(hooks, frame.f_code)


def which_runs(frames: Sequence[FrameType]) -> tuple[int, int] | None:
    """Tells apart what torch.compile has returned, whose call one of `frames` runs, as long as it
    lives; None: none of them does, or calls run in a context that a backend asks for."""
    frame = _frame_of_wrapper(frames)
    if frame is None:
        return None
    if any(getattr(each, "__name__", "") == _IN_CONTEXT for each in _hooks_in(frame) or ()):
        return None
    return id(frame.f_locals.get("self")), id(frame.f_locals.get("fn"))


_IN_CONTEXT = "call_backend_ctx"
"""How the hook is called that enters a backend's context (its attribute backend_ctx_ctor)."""


def wrapper_running(frames: Sequence[FrameType]) -> FunctionType | None:
    """The function that torch.compile has returned, whose call one of `frames` runs; None: it is
    not found. Where its caller has no variable for it, as torch.nn.Module's does, all objects of
    the process are looked through, which takes some 50 ms."""
    frame = _frame_of_wrapper(frames)
    if frame is None:
        return None
    near = () if frame.f_back is None else frame.f_back.f_locals.values()
    for look in (lambda: near, lambda: gc.get_referrers(frame.f_code)):
        for found in look():
            if isinstance(found, FunctionType) and _is_of(found, frame.f_code, frame.f_locals):
                return found
    return None


def _frame_of_wrapper(frames: Sequence[FrameType]) -> FrameType | None:
    """The first that runs what torch.compile has made of a function."""
    return next((each for each in frames if _is_wrapper(each.f_code)), None)


def _hooks_in(frame: FrameType) -> list[Any] | None:
    """Of such a frame; None where this torch has none."""
    hooks = getattr(frame.f_locals.get("self"), "enter_exit_hooks", None)
    return hooks if isinstance(hooks, list) else None


def _is_of(function: FunctionType, code: CodeType, variables: Mapping[str, Any]) -> bool:
    """Whether it is what was returned, and has these variables in its cells."""
    if function.__code__ is not code or not hasattr(function, ORIGINAL):
        return False
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    try:
        return all(cell.cell_contents is variables[name] for name, cell in cells)
    except (KeyError, ValueError):
        return False


def copied(wrapper: FunctionType) -> FunctionType:
    """What does the same as `wrapper`, whatever becomes of that."""
    found = FunctionType(
        wrapper.__code__,
        wrapper.__globals__,
        wrapper.__name__,
        wrapper.__defaults__,
        wrapper.__closure__,
    )
    found.__kwdefaults__ = wrapper.__kwdefaults__
    return found


def divert(wrapper: FunctionType, through: Callable[..., Any]) -> bool:
    """Has the calls of what torch.compile has returned made by `through`, with the same arguments.
    False: this torch's is made otherwise. In a default, for the collector does not look into
    code."""
    return _replace(wrapper, _DIVERTED, {_THROUGH: through})


def divert_module(module: Any, through: Callable[..., Any]) -> bool:
    """The same of a module that torch.compile has returned: a call does not even enter what torch
    puts around the wrapper. The class looks for `through` in each of its calls from then on."""
    call = _calls_of_modules()
    if call is None:
        return False
    diverted = _CALL in (call.__kwdefaults__ or {})
    if diverted or _replace(call, _DIVERTED_CLASS, {_CALL: copied(call)}):
        vars(module)[_THROUGH] = through
        return True
    return False


def call_of_modules() -> Callable[..., Any] | None:
    """What a call of a module runs that torch.compile has returned, if it is not diverted."""
    call = _calls_of_modules()
    return call and (call.__kwdefaults__ or {}).get(_CALL, call)


def module_calling(wrapper: FunctionType, frames: Sequence[FrameType]) -> Any:
    """The module that torch.compile has returned with `wrapper`, if that runs for a call of it."""
    call = call_of_modules()
    code = getattr(call, "__code__", None)
    callers = (each.f_locals.get("self") for each in frames if each.f_code is code)
    kind = private("torch._dynamo.eval_frame:OptimizedModule")
    known = (each for each in callers if type(each) is kind)
    return next((each for each in known if vars(each).get("forward") is wrapper), None)


def _calls_of_modules() -> FunctionType | None:
    """None: this torch's call modules otherwise."""
    kind = private("torch._dynamo.eval_frame:OptimizedModule")
    call = vars(kind).get("__call__")
    return call if isinstance(call, FunctionType) else None


def _replace(function: FunctionType, source: str, defaults: dict[str, Any]) -> bool:
    """Gives it the code that `source` has within its function, and these named defaults."""
    code = function.__code__
    names: dict[str, Any] = {}
    exec(source.format(free=", ".join(code.co_freevars)), names)
    within = names["around"].__code__.co_consts
    made = next(each for each in within if isinstance(each, CodeType))
    replaced = made.replace(
        co_filename=code.co_filename, co_firstlineno=code.co_firstlineno, co_name=code.co_name
    )
    if replaced.co_freevars != code.co_freevars or function.__kwdefaults__:
        return False
    function.__kwdefaults__ = defaults
    function.__code__ = replaced
    return True


def wrapper_of(compiled: Any) -> Any:
    """The function that runs the calls of what torch.compile has returned, or of a module that was
    compiled in place."""
    within = getattr(compiled, "_compiled_call_impl", None)
    return within or getattr(compiled, "forward", compiled)


def diverted_to(compiled: Any) -> Any:
    """What divert() or divert_module() was given; None: it was not called, or undone."""
    own = getattr(compiled, "__dict__", None) or {}
    return own.get(_THROUGH) or (getattr(compiled, "__kwdefaults__", None) or {}).get(_THROUGH)


def lead_back(wrapper: FunctionType, like: FunctionType) -> None:
    """Undoes divert(); `like`: copied() before it."""
    wrapper.__code__ = like.__code__
    wrapper.__kwdefaults__ = like.__kwdefaults__


def lead_module_back(module: Any) -> None:
    """Undoes divert_module() for this module."""
    vars(module).pop(_THROUGH, None)


_THROUGH = "_pygraph_through"
_DIVERTED = f"""
def around({{free}}):
    def diverted(*args, {_THROUGH}, **kwargs):
        return {_THROUGH}(*args, **kwargs)
        {{free}}  # so that its cells may stay
    return diverted
"""
_CALL = "_pygraph_call"
_DIVERTED_CLASS = f"""
def around({{free}}):
    def diverted(self, /, *args, {_CALL}, **kwargs):
        through = self.__dict__.get("{_THROUGH}")
        if through is None:
            return {_CALL}(self, *args, **kwargs)
        return through(*args, **kwargs)
        {{free}}
    return diverted
"""


def stance() -> tuple[Callable[..., Any], Any, Any] | None:
    """A function, its argument, and what it answers while torch.compiler.set_stance() sets nothing
    else. None: this torch has no stances."""
    variables = vars(private("torch._dynamo:eval_frame"))
    name = "_stance"
    return (variables.get, name, variables[name]) if name in variables else None


def _is_wrapper(code: CodeType | None) -> bool:
    """Whether it is of what torch.compile makes of a function."""
    if code is None:
        return False
    return code.co_name == "compile_wrapper" and code.co_filename.endswith(_FILE)


def hooks_of(compiled: Any) -> list[Any]:
    """The hooks of a callable that does not run."""
    context = getattr(compiled, "dynamo_ctx", None)
    if context is None:
        names = compiled.__code__.co_freevars
        context = compiled.__closure__[names.index("self")].cell_contents
    hooks: list[Any] = context.enter_exit_hooks
    return hooks


def original(compiled: Any) -> Any:
    """What torch.compile was given, where it has returned `compiled`; or its method that is
    called: of a module compiled in place, that of what it was made of."""
    within = getattr(compiled, "_compiled_call_impl", None) or compiled
    return getattr(within, ORIGINAL, None)


def code_before(code: CodeType) -> CodeType | None:
    """The code of a function, of what Dynamo has made of it."""
    try:
        found: CodeType | None = private("torch._dynamo.utils:orig_code_map").get(code)
    except Missing:
        return None
    return found


def is_graph(name: str) -> bool:
    """Whether a variable of the module of Dynamo's code is one of its graphs."""
    return name.startswith(COMPILED[0])


def is_harmless(value: Any) -> bool:
    """Whether it is what Dynamo's code calls around its graph, for profilers, or a look at the keys
    of a dictionary."""
    names = ("record_pregraph_bytecode_enter", "record_pregraph_bytecode_exit", "dict_keys_getitem")
    return _is_one_of(value, *names)


def is_setter(value: Any) -> bool:
    """Whether it is what Dynamo's code sets an attribute of an object by, in its `__dict__`."""
    return _is_one_of(value, "object_setattr_ignore_descriptor")


def _is_one_of(value: Any, *names: str) -> bool:
    if not callable(value):
        return False
    for name in names:
        with contextlib.suppress(Missing):
            if value is private(f"torch._dynamo.utils:{name}"):
                return True
    return False


LAMBDA = "LAMBDA_GUARD"
"""The kind of a guard that asks for a condition."""


def is_of_calls(code: CodeType) -> bool:
    """Whether it is torch's own, on the way from a call of what torch.compile has returned to the
    frame that it compiles."""
    return code.co_filename.endswith(_OF_CALLS)


_OF_CALLS = (_FILE, "torch/_dynamo/external_utils.py", "torch/nn/modules/module.py")


@dataclass(frozen=True)
class Guarded:
    """Something that guards look at."""

    source: str
    """An expression: of `L`, the variables of the frame, and `G`, those of its module. Of the kind
    LAMBDA: a condition of such."""
    checks: frozenset[str]
    """The kinds of these guards, by Dynamo's names."""
    contained: frozenset[str | int] = frozenset()
    """The keys that they ask for, of a dictionary."""
    lacking: frozenset[str] = frozenset()
    """The attributes that it is not to have."""


def guarded_by(code: CodeType) -> list[Guarded] | None:
    """All that the guards look at in front of code that Dynamo has made. None: this torch does not
    tell."""
    before = code_before(code)
    try:
        entries = private("torch._C._dynamo.eval_frame:_debug_get_cache_entry_list")
        roots = [each.guard_manager.root for each in entries(before) if each.code is code]
        if not roots:
            return None
        behind = [each for guard in roots[0].get_epilogue_lambda_guards() for each in _said(guard)]
        return [*_looked_at(roots[0]), *behind]
    except (Missing, AttributeError, TypeError):
        return None


def admits(code: CodeType, variables: Mapping[str, Any]) -> bool:
    """Whether the guards in front of code that Dynamo has made admit a call with these variables of
    its frame, as things are now."""
    entries = private("torch._C._dynamo.eval_frame:_debug_get_cache_entry_list")(code_before(code))
    managers = [each.guard_manager for each in entries if each.code is code]
    return any(each.check(dict(variables)) for each in managers)


def _said(guard: Any) -> Iterator[Guarded]:
    """Of one that asks something of several things, by what it says of itself."""
    for text in guard.verbose_code_parts():
        said = text.partition("  # ")[0].strip()
        if re.search(r"\b[LG]\b", said):  # else of modes
            yield Guarded(said, frozenset({LAMBDA}))


def _looked_at(manager: Any) -> Iterator[Guarded]:
    checks: set[str] = set()
    contained: set[str | int] = set()
    lacking: set[str] = set()
    for guard in manager.get_leaf_guards():
        kind, text = type(guard).__name__, " ".join(guard.verbose_code_parts())
        if kind == "NO_HASATTR":
            found = re.search(r"hasattr\(.*, ['\"](\w+)['\"]\)", text.partition("  # ")[0])
            if found is None:
                kind = "NO_HASATTR of a name"
            else:
                if not found[1].startswith(MARKS):  # of tensors whose sizes are to vary
                    lacking.add(found[1])
                continue
        if kind == LAMBDA:
            yield from _said(guard)
            continue
        if kind == "DICT_CONTAINS":
            found = re.search(r"___dict_contains\((?:'([^']*)'|(\d+)),", text)
            if found is None:
                kind = "DICT_CONTAINS of an object"
            else:
                contained.add(found[1] if found[2] is None else int(found[2]))
        checks.add(kind)
    yield Guarded(manager.get_source(), frozenset(checks), frozenset(contained), frozenset(lacking))
    below = list(manager.get_child_managers())
    if hasattr(manager, "get_key_value_managers"):  # of a dictionary
        for pair in manager.get_key_value_managers().values():
            below += filter(None, pair)
    for each in below:
        yield from _looked_at(each)
