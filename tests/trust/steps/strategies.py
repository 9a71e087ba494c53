"""Hypothesis strategies of whole steps: a model, how it is trained, what else the step does, and
its calls.

Left out, since eager code has no single right answer, or since other tests have it: memory that is
not aligned (the programs that torch.compile is given bring it); tensors that are read past torch's
operators, by NumPy or by their addresses, which on the twin nobody can see; steps that torch
refuses in each call; torch.compile inside, which takes seconds a program.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from . import between, features, models
from .programs import HOLDERS, StepCall, WholeStep
from .writer import FORMS, WIDTH, Writer

#: Features with which a program runs as it is, in all calls.
UNGRAPHED = frozenset(
    {
        *models.UNGRAPHED_PIECES,
        *models.UNGRAPHED_OPTIMIZERS,
        *features.UNGRAPHED_FEATURES,
        "number that varies in a forward",  # autograd's graph keeps its value
    }
)
_SIZES = (3, 4, 2)
#: The contexts of calls that do not train.
_MODES = ("", "torch.no_grad()", "torch.inference_mode()")
_MOST_FEATURES = 4


@st.composite
def steps(draw: Any) -> WholeStep:
    writer = Writer(draw)
    names = ["x"]
    writer.add_input("x", lambda seed, size, variant: f"t({seed}, {size}, {WIDTH})")
    writer.add("begin", "x = <x>")
    writer.keep("net", models.model(writer))
    trains = not writer.once_in(8)
    if trains:
        _train(writer)
    else:
        _infer(writer)
    form_name = writer.one_of(tuple(FORMS))
    writer.has(f"arguments: {form_name}")
    holder = writer.one_of(HOLDERS)
    writer.has(f"state in: {holder}")
    calls = _calls(writer, form_name, trains)
    signature, read, _ = FORMS[form_name]
    names = [each.name for each in writer.inputs]
    body = [*writer.body(), _returned(writer)]
    for number, name in enumerate(names):
        body = [line.replace(f"<{name}>", read(name, number)) for line in body]
    return WholeStep(
        holder=holder,
        state=tuple(writer.state.items()),
        setup=tuple(writer.setup),
        signature=signature(names),
        body=tuple(body),
        calls=calls,
        features=tuple(writer.features),
    )


# ---------------------------------------------------------------------------------------- the body


def _train(writer: Writer) -> None:
    _forward(writer)
    loss = writer.one_of(tuple(features.LOSSES))
    writer.has(loss)
    writer.add("loss", f"loss = {features.targets(writer, features.LOSSES[loss])}")
    writer.results += ["loss", "loss.detach()", "out.detach()"]
    chosen = writer.one_of((1, 2, 0, 3, _MOST_FEATURES))
    for _ in range(chosen):
        _add_feature(writer, features.FEATURES)
    if writer.once_in(5):
        _add_feature(writer, features.UNGRAPHED_FEATURES)
    _backward(writer)


def _add_feature(writer: Writer, table: dict[str, features.Feature]) -> None:
    name = writer.one_of(tuple(table))
    if name not in writer.features:
        writer.has(name)
        table[name](writer)


def _forward(writer: Writer) -> None:
    if writer.once_in(10):
        writer.has("autocast")
        writer.add(
            "forward",
            "with torch.autocast(torch.device(DEVICE).type, dtype=torch.bfloat16):",
            "    out = $net(x)",
            "out = out.float()",
        )
    elif writer.once_in(20):
        writer.has("functional call")
        writer.add(
            "forward",
            "out = torch.func.functional_call($net, dict($net.named_parameters()), (x,))",
        )
    else:
        writer.add("forward", "out = $net(x)")


def _backward(writer: Writer) -> None:
    """From the loss to new weights."""
    how = writer.one_of(
        (
            *("optimizer",) * 8,
            *("accumulation", "no optimizer", "gradients only", "by hand", "in the backward"),
            *("by the caller",) * 3,
        )
    )
    writer.has(f"updates: {how}")
    if how == "by hand":
        writer.add(
            "backward",
            "learning = [p for p in $net.parameters() if p.requires_grad]",
            "slopes = torch.autograd.grad(loss, learning, allow_unused=True)",
            "with torch.no_grad():",
            "    for p, g in zip(learning, slopes):",
            "        if g is not None: p.sub_(g, alpha=0.1)",
        )
        return
    if how == "in the backward":
        writer.keep("own", "{p: torch.optim.SGD([p], lr=0.1) for p in $net.parameters()}")
        writer.setup.append(
            "for p in $net.parameters():\n"
            "    if p.requires_grad: p.register_post_accumulate_grad_hook("
            "functools.partial(take, $own))"
        )
        writer.add("backward", "loss.backward()")
        return
    if how == "no optimizer":
        _zero(writer, "for p in $net.parameters(): p.grad = None")
        writer.add("backward", "loss.backward()")
        writer.add(
            "step",
            "with torch.no_grad():",
            "    for p in $net.parameters():",
            "        if p.grad is not None: p.sub_(p.grad, alpha=0.1)",
        )
        return
    if how == "gradients only":
        if writer.flag():
            _zero(writer, "$net.zero_grad()")
        writer.add("backward", "loss.backward()")
        return
    models.optimizer(writer, "steps", "$net")
    if how == "by the caller":
        _leave_to_the_caller(writer)
        return
    _call_backward(writer)
    none = writer.one_of(("", "set_to_none=False"))
    if how == "accumulation":
        writer.variants = True
        last = writer.add_input("final", lambda seed, size, variant: str(not variant))
        writer.add("step", f"if {last}:", "    $steps.step()", f"    $steps.zero_grad({none})")
        return
    _zero(writer, f"$steps.zero_grad({none})")
    writer.add("step", "$steps.step()")


def _leave_to_the_caller(writer: Writer) -> None:
    """The step is a forward, whose results wait for a backward."""
    writer.grads = False
    if any(name in writer.features for name in features.NUMBERS):
        writer.has("number that varies in a forward")
    losses = {
        "loss": "result",
        "loss, out": "result[0] + 0.1 * result[1].sum()",
        "out, loss": "result[1]",
        "{'loss': loss, 'out': out.detach()}": "result['loss']",
    }
    returned = writer.one_of(tuple(losses))
    writer.returned = f"return {returned}"
    backward = [f"({losses[returned]}).backward()"]
    if writer.once_in(4):
        writer.has("backward a call later")
        waiting = writer.keep("waiting", "[]")
        backward = [
            f"{waiting}.append({losses[returned]})",
            f"if len({waiting}) > 1: {waiting}.pop(0).backward()",
        ]
    update = [] if writer.once_in(4) else ["$steps.step()"]
    zero = writer.one_of((["$steps.zero_grad()"], ["$steps.zero_grad(set_to_none=False)"], []))
    writer.behind = (*backward, *update, *zero)


def _zero(writer: Writer, line: str) -> None:
    """Gradients are dropped at the beginning or the end."""
    writer.add(writer.one_of(("begin", "end", "loss")), line)


def _call_backward(writer: Writer) -> None:
    how = writer.one_of((*("once",) * 6, "twice", "by the engine", "in microbatches"))
    if how == "twice":
        writer.has("backward twice")
        writer.add("backward", "loss.backward(retain_graph=True)", "loss.backward()")
    elif how == "by the engine":
        writer.add("backward", "torch.autograd.backward([loss], [torch.full_like(loss, 0.5)])")
    elif how == "in microbatches":
        writer.has("microbatches")
        writer.add(
            "backward",
            "loss.backward()",
            "for piece in x.detach().split(2):",
            "    if len(piece) == 2: $net(piece).square().mean().backward()",
        )
    else:
        writer.add("backward", "loss.backward()")


def _infer(writer: Writer) -> None:
    """A step without a backward."""
    writer.has("inference")
    writer.grads = False
    if writer.flag():
        writer.add("forward", "with torch.no_grad():", "    out = $net(x)")
    else:
        writer.add("forward", "out = $net(x)")
    writer.add("forward", "loss = out.square().mean()")
    writer.results += ["out", "loss", "out.argmax(1)"]
    for _ in range(writer.integer(0, 2)):
        _add_feature(writer, _OF_INFERENCE)


_OF_INFERENCE = {
    name: each
    for name, each in features.FEATURES.items()
    if name
    in (
        "number that scales",
        "number that decides",
        "none or a tensor",
        "argument that is written",
        "attribute that is rebound",
        "attribute that is none at first",
        "tensor that is written",
        "dictionary of tensors",
        "list of tensors",
        "cache that is filled",
        "ring of results",
        "random generator",
        "raises for a number",
    )
}
_RETURNED = {
    "one": "return {0}",
    "tuple": "return {0}, {1}",
    "dict": "return {{'first': {0}, 'more': [{1}, None, 'text', 3]}}",
    "twice": "return [{0}, {0}], {1}",
    "nothing": "return None",
    "a parameter": "return $net[0].weight, {0}",
    "the model's input": "return {0}, x",
    "named tuple": "return Pair({0}, {1})",
    "views": "return {0}, out.detach()[0], out.detach().t()",
    "number of the batch": "return {0}, len(x)",
    "the model": "return {0}, $net",
}


def _returned(writer: Writer) -> str:
    if writer.returned is not None:
        return writer.returned
    how = writer.one_of(tuple(_RETURNED))
    writer.has(f"returns: {how}")
    # What a feature offers comes last, and is taken more often.
    offered = writer.results[::-1]
    first = writer.one_of(offered)
    return _RETURNED[how].format(first, writer.one_of(offered))


# --------------------------------------------------------------------------------------- the calls


def _calls(writer: Writer, form: str, trains: bool) -> tuple[StepCall, ...]:
    """Some calls that are alike or take turns; then something happens, and there are more."""
    sizes = [writer.one_of(_SIZES)]
    if writer.once_in(6):
        writer.has("two batch sizes")
        sizes.append(5)
    turns = writer.variants and writer.one_of((True, True, False))
    if turns:
        writer.has("variants take turns")
    modes = _modes(writer, trains)
    kinds = len(sizes) * (1 + turns) * len(modes)
    before = _schedule(writer)
    calls: list[StepCall] = []
    events = _events(writer)
    kept = writer.flag()
    for phase in range(1 + writer.one_of((1, 0, 1, 2))):
        happens: tuple[str, ...] = ()
        if phase:
            name = writer.one_of(tuple(events))
            writer.has(name)
            happens = events[name]
            if name == "a group is added":
                writer.keep("more", "None")
        for number in range(kinds * (4 if phase else 6) - writer.integer(0, 1)):
            seed = len(calls) + 1
            again = None
            if number > 3 and writer.once_in(12):
                again = writer.integer(len(calls) - 2, len(calls) - 1)
            variant = number % 2 if turns else 0
            size = sizes[number // 2 % len(sizes)] if turns else sizes[number % len(sizes)]
            values = [(each.name, each.make(seed, size, variant)) for each in writer.inputs]
            calls.append(
                StepCall(
                    FORMS[form][2](values),
                    again=again,
                    before=(*before, *happens),
                    under=modes[number // (len(sizes) * (1 + turns)) % len(modes)],
                    behind=writer.behind,
                    kept=kept and not writer.once_in(3),
                )
            )
            happens = ()
    return tuple(calls)


def _schedule(writer: Writer) -> tuple[str, ...]:
    if "$steps" not in writer.optimizers or "rate in a tensor" in " ".join(writer.features):
        return ()
    if not writer.once_in(8):
        return ()
    name = writer.one_of(tuple(between.SCHEDULES))
    writer.has(name)
    if name == "a rate of a schedule":
        writer.keep("schedule", writer.one_of(between.SCHEDULERS))
    return between.SCHEDULES[name]


def _events(writer: Writer) -> dict[str, tuple[str, ...]]:
    found = dict(between.EVENTS)
    if "$steps" in writer.optimizers:
        found |= between.EVENTS_OF_OPTIMIZERS
    if "hidden" in writer.state:
        found["an attribute is replaced"] = ("$hidden = torch.ones_like($hidden)",)
    if "settings" in writer.state:
        found["a number in a container changes"] = ("$settings['weights'][0] *= 0.5",)
        found["a container is replaced by an equal one"] = ("$settings = copy.deepcopy($settings)",)
    return found


def _modes(writer: Writer, trains: bool) -> list[str]:
    """The contexts that calls take turns in."""
    if trains:
        return [""]
    modes = [writer.one_of(_MODES)]
    if writer.once_in(4):
        modes.append(writer.one_of([mode for mode in _MODES if mode != modes[0]]))
        writer.has("modes take turns")
    for mode in modes:
        writer.has(f"called {mode or 'with gradients'}")
    return modes
