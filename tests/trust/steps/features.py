"""What a whole step may do. Each function writes one thing into a step that trains a model; its
name is the feature's, in the tables below."""

from __future__ import annotations

from collections.abc import Callable

from . import models
from .writer import CLASSES, WIDTH, Writer

Feature = Callable[[Writer], None]

# --------------------------------------------------------------------------- the loss and its parts

LOSSES = {
    "mse": "F.mse_loss(out, {y})",
    "smooth l1": "F.smooth_l1_loss(out, {y})",
    "squares": "(out - {y}).square().mean()",
    "cross entropy": "F.cross_entropy(out, {k})",
    "binary cross entropy": "F.binary_cross_entropy_with_logits(out, {y}.sigmoid())",
    "kl": "F.kl_div(out.log_softmax(1), {y}.softmax(1), reduction='batchmean')",
    "inner product": "(out * {y}).sum() * 0.125 + out.logsumexp(1).mean()",
    "norm": "torch.linalg.vector_norm(out - {y})",
}


def targets(writer: Writer, text: str) -> str:
    if "{k}" in text:
        make = lambda seed, size, variant: (  # noqa: E731
            f"t({seed} + 300, {size}, dtype='int64') % {CLASSES}"
        )
        return text.replace("{k}", writer.add_input("k", make))
    make = lambda seed, size, variant: f"t({seed} + 300, {size}, {CLASSES})"  # noqa: E731
    return text.replace("{y}", writer.add_input("y", make))


def penalty_on_weights(writer: Writer) -> None:
    writer.add("loss", "loss = loss + 0.01 * sum(p.square().sum() for p in $net.parameters())")


def penalty_on_gradients(writer: Writer) -> None:
    writer.add(
        "loss",
        "point = (x * 0.5).detach().requires_grad_()",
        "(slope,) = torch.autograd.grad($net(point).sum(), point, create_graph=True)",
        "loss = loss + 0.1 * slope.square().mean()",
    )


def number_that_scales(writer: Writer) -> None:
    """Another one in each call."""
    scale = writer.add_input("scale", lambda seed, size, variant: f"{0.1 + seed / 7:.3}")
    writer.add("loss", f"loss = loss * {scale}")


def number_that_is_computed_with(writer: Writer) -> None:
    rate = writer.add_input("rate", lambda seed, size, variant: f"{0.01 + seed / 900:.4}")
    writer.add("loss", f"loss = loss * (1 - 0.9 / (1 + {rate})) + out.mean() * {rate} ** 2")


def whole_number_that_counts(writer: Writer) -> None:
    """Up, in each call; computed with."""
    count = writer.add_input("count", lambda seed, size, variant: str(seed + 10))
    writer.add("loss", f"loss = loss * ({count} * 0.0625)")


def number_that_decides(writer: Writer) -> None:
    writer.variants = True
    bound = writer.add_input("bound", lambda seed, size, variant: f"{0.3 + variant:.2}")
    writer.add("loss", f"if {bound} > 0.75:", "    loss = loss * 2 + 0.125")


def number_of_rounds(writer: Writer) -> None:
    writer.variants = True
    rounds = writer.add_input("rounds", lambda seed, size, variant: str(1 + variant))
    writer.add("loss", f"for _ in range({rounds}):", "    loss = loss + out.square().mean()")


def text_that_decides(writer: Writer) -> None:
    writer.variants = True
    mode = writer.add_input("mode", lambda seed, size, variant: repr(("mean", "sum")[variant]))
    writer.add("loss", f"loss = loss + F.l1_loss(out, out.detach() * 0.5, reduction={mode})")


def none_or_a_tensor(writer: Writer) -> None:
    writer.variants = True
    mask = writer.add_input(
        "mask",
        lambda seed, size, variant: f"t({seed} + 40, {size}, 1)" if variant else "None",
    )
    writer.add("forward", f"if {mask} is not None:", f"    out = out * {mask}")


def argument_that_is_written(writer: Writer) -> None:
    note = writer.add_input("note", lambda seed, size, variant: f"t({seed} + 50, {CLASSES})")
    writer.add("update", f"{note}.add_(out.detach().mean(0))")


def input_that_is_written(writer: Writer) -> None:
    writer.add("begin", "x.mul_(0.5)")


def argument_that_requires_grad(writer: Writer) -> None:
    """And gets one."""
    soft = writer.add_input(
        "soft", lambda seed, size, variant: f"t({seed} + 60, {CLASSES}).requires_grad_()"
    )
    writer.add("loss", f"loss = loss + (out * {soft}).square().mean()")
    writer.results.append(f"{soft}.grad")


def gradient_of_the_input(writer: Writer) -> None:
    writer.add("begin", "x = x.detach().requires_grad_()")
    writer.add("update", "moved = x + 0.1 * x.grad.sign()")
    writer.results.append("moved.detach()")


def other_argument(writer: Writer) -> None:
    """That nobody reads."""
    writer.add_input("unread", lambda seed, size, variant: f"t({seed} + 70, 2)")


# ------------------------------------------------------------------------------ state that is kept


def attribute_that_is_rebound(writer: Writer) -> None:
    state = writer.keep("hidden", f"torch.zeros({CLASSES}, device=DEVICE)")
    writer.add("loss", f"loss = loss + (out - {state}).square().mean()")
    writer.add("update", f"{state} = 0.5 * {state} + out.detach().mean(0)")
    writer.results.append(state)


def attribute_that_is_none_at_first(writer: Writer) -> None:
    state = writer.keep("last", "None")
    writer.add("forward", f"if {state} is not None:", f"    out = out + {state}")
    writer.add("update", f"{state} = out.detach().mean(0) * 0.5")


def tensor_that_is_written(writer: Writer) -> None:
    """And read: by the loss, whose backward needs it, or behind that."""
    state = writer.keep("total", f"torch.zeros({CLASSES}, device=DEVICE)")
    part = writer.one_of(("update", "loss"))
    writer.add(part, f"{state}.mul_(0.9).add_(out.detach().mean(0))")
    if part == "loss":
        writer.add(part, f"loss = loss + (out * {state}).mean()")
    writer.results.append(f"{state} * 2")


def dictionary_of_tensors(writer: Writer) -> None:
    state = writer.keep("memory", "{'a': torch.zeros(3, device=DEVICE), 'b': None}")
    writer.add(
        "update", f"{state}['b'], {state}['a'] = {state}['a'], {state}['a'] + out.detach().sum(0)"
    )


def list_of_tensors(writer: Writer) -> None:
    """Two that change places."""
    state = writer.keep("queue", "[torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)]")
    writer.add(
        "update", f"{state}[0], {state}[1] = {state}[1] * 0.5 + out.detach().mean(0), {state}[0]"
    )


def cache_that_is_filled(writer: Writer) -> None:
    """Has its key from the first call on."""
    state = writer.keep("cache", "{}")
    writer.add("update", f"{state}['out'] = out.detach()")


def ring_of_results(writer: Writer) -> None:
    ring = writer.keep("ring", "torch.zeros(4, device=DEVICE)")
    cursor = writer.keep("cursor", "torch.zeros(1, dtype=torch.int64, device=DEVICE)")
    writer.add(
        "update",
        f"{ring}.index_copy_(0, {cursor}, loss.detach().reshape(1))",
        f"{cursor}.add_(1).remainder_(4)",
    )


def numbers_in_containers(writer: Writer) -> None:
    settings = writer.keep("settings", "{'weights': [0.5, 0.25], 'names': {'a', 'b'}, 'n': 2}")
    writer.add("loss", f"loss = loss * {settings}['weights'][0] + len({settings}['names']) * 0.1")


def two_views_of_one_memory(writer: Writer) -> None:
    state = writer.keep("flat", "torch.zeros(6, device=DEVICE)")
    views = writer.keep("views", f"[{state}[:3], {state}[2:5]]")
    writer.add("update", f"{views}[0].add_(out.detach().mean(0))", f"{views}[1].mul_(0.5)")
    writer.results.append(f"{state}.sum()")


def random_generator(writer: Writer) -> None:
    generator = writer.keep("generator", "torch.Generator(DEVICE).manual_seed(3)")
    writer.add(
        "forward",
        f"out = out + 0.1 * torch.randn({CLASSES}, generator={generator}, device=DEVICE)",
    )


# ------------------------------------------------------------------------------------ other models


def average_of_weights(writer: Writer) -> None:
    state = writer.keep("average", "[p.detach().clone() for p in $net.parameters()]")
    update = writer.one_of(
        (
            "for a, p in zip({s}, $net.parameters()): a.lerp_(p, 0.25)",
            "for a, p in zip({s}, $net.parameters()): a.mul_(0.75).add_(p, alpha=0.25)",
            "torch._foreach_lerp_({s}, list($net.parameters()), 0.25)",
        )
    )
    writer.add("update", "with torch.no_grad():", "    " + update.format(s=state))


def target_network(writer: Writer) -> None:
    target = writer.keep("target", "copy.deepcopy($net)")
    writer.add("loss", f"loss = loss + (out - {target}(x).detach()).square().mean()")
    update = writer.one_of(
        (
            "p.lerp_(q, 0.125)",
            "p.mul_(0.875).add_(q, alpha=0.125)",
            "p.copy_(q)",
            "p.data.copy_(p.data * 0.875 + q.data * 0.125)",
        )
    )
    writer.add(
        "update",
        "with torch.no_grad():",
        f"    for p, q in zip({target}.parameters(), $net.parameters()): {update}",
    )


def second_optimizer(writer: Writer) -> None:
    """A critic, which is trained on what the model made."""
    critic = writer.keep("critic", models.model(writer, CLASSES, 1, most=1))
    optimizer = models.optimizer(writer, "critic_steps", critic)
    lines = [
        f"{optimizer}.zero_grad()",
        f"judged = {critic}(out.detach()).square().mean()",
        "judged.backward()",
        f"{optimizer}.step()",
    ]
    if writer.flag():  # its gradients are switched off while the model has its turn
        lines += [f"for p in {critic}.parameters(): p.requires_grad_(False)"]
        lines += [f"out = out + {critic}(out)"]
        lines += [f"for p in {critic}.parameters(): p.requires_grad_(True)"]
    writer.add("forward", *lines)
    writer.results.append("judged.detach()")


def evaluation_inside(writer: Writer) -> None:
    writer.add(
        "end",
        "$net.eval()",
        "with torch.no_grad():",
        "    checked = $net(x).mean()",
        "$net.train()",
    )
    writer.results.append("checked")


# ------------------------------------------------------------------------------------- gradients


def clipped_by_norm(writer: Writer) -> None:
    foreach = writer.one_of(("", ", foreach=False"))
    writer.add("gradients", f"norm = nn.utils.clip_grad_norm_($net.parameters(), 0.25{foreach})")
    writer.results.append("norm")


def clipped_by_value(writer: Writer) -> None:
    writer.add("gradients", "nn.utils.clip_grad_value_($net.parameters(), 0.1)")


def gradients_that_are_rebound(writer: Writer) -> None:
    writer.add(
        "gradients",
        "for p in $net.parameters():",
        "    if p.grad is not None: p.grad = p.grad.sign() * 0.1",
    )


def gradients_that_are_written(writer: Writer) -> None:
    noise = writer.one_of(("torch.ones_like(p.grad)", "torch.randn_like(p.grad)"))
    writer.add(
        "gradients",
        "for p in $net.parameters():",
        f"    if p.grad is not None: p.grad.add_({noise}, alpha=0.01)",
    )


def gradients_that_are_returned(writer: Writer) -> None:
    writer.results.append("[p.grad for p in $net.parameters()]")


def gradients_of_before_that_are_read(writer: Writer) -> None:
    writer.add(
        "begin",
        "before = [p.grad.sum() for p in $net.parameters() if p.grad is not None]",
    )
    writer.results.append("before")


FEATURES: dict[str, Feature] = {
    each.__name__.replace("_", " "): each
    for each in (
        penalty_on_weights,
        penalty_on_gradients,
        number_that_scales,
        number_that_is_computed_with,
        whole_number_that_counts,
        number_that_decides,
        number_of_rounds,
        text_that_decides,
        none_or_a_tensor,
        argument_that_is_written,
        input_that_is_written,
        argument_that_requires_grad,
        gradient_of_the_input,
        other_argument,
        attribute_that_is_rebound,
        attribute_that_is_none_at_first,
        tensor_that_is_written,
        dictionary_of_tensors,
        list_of_tensors,
        cache_that_is_filled,
        ring_of_results,
        numbers_in_containers,
        two_views_of_one_memory,
        random_generator,
        average_of_weights,
        target_network,
        second_optimizer,
        evaluation_inside,
        clipped_by_norm,
        clipped_by_value,
        gradients_that_are_rebound,
        gradients_that_are_written,
        gradients_that_are_returned,
        gradients_of_before_that_are_read,
    )
}

#: Those that differ from call to call.
NUMBERS = (
    "number that scales",
    "number that is computed with",
    "whole number that counts",
)

# ------------------------------------------------------------- what no replay can stand for


def value_that_is_read(writer: Writer) -> None:
    writer.add("update", "if loss.item() > 0.5:", "    out = out * 0.5")


def number_that_is_returned(writer: Writer) -> None:
    writer.results.insert(0, "float(loss)")


def counter(writer: Writer) -> None:
    count = writer.keep("counted", "0")
    writer.add(writer.one_of(("begin", "update", "end")), f"{count} += 1")


def log_that_grows(writer: Writer) -> None:
    log = writer.keep("log", "[]")
    writer.add("update", f"{log}.append(loss.detach())")


def shape_that_depends_on_values(writer: Writer) -> None:
    writer.add("loss", "loss = loss + out[out > 0].sum() * 0.01")


def random_numbers_of_python(writer: Writer) -> None:
    writer.add("loss", "loss = loss * random.random()")


def raises_for_a_value(writer: Writer) -> None:
    part = writer.one_of(("begin", "gradients", "update"))
    writer.add(part, "if float(x.sum()) > 3: raise ValueError('too much')")


def rate_that_the_step_changes(writer: Writer) -> None:
    writer.add("end", "for group in $steps.param_groups: group['lr'] = group['lr'] * 0.9")


def whole_number_that_decides(writer: Writer) -> None:
    """Another one in each call. What Python computes of it with an int, or with a float in front,
    is no number that a graph could take."""
    count = writer.add_input("whole", lambda seed, size, variant: str(seed + 10))
    scale = writer.one_of((f"1.5 / {count}", f"(5 + {count}) * 0.0625"))
    writer.add("loss", f"loss = loss * ({scale})")


def data_that_is_rebound(writer: Writer) -> None:
    """A parameter that the step itself gives other memory."""
    writer.add("update", "for p in $net.parameters(): p.data = p.data * 0.75")


def list_that_is_made_anew(writer: Writer) -> None:
    """With other tensors: a replay puts them in the old one."""
    if writer.flag():
        state = writer.keep("latest", "[None]")
        writer.add("update", f"{state} = [loss.detach()]")
        return
    state = writer.keep("mean", "{n: p.detach().clone() for n, p in $net.named_parameters()}")
    writer.add(
        "update",
        f"{state} = {{n: {state}[n] * 0.75 + p.detach() * 0.25"
        " for n, p in $net.named_parameters()}",
    )


def tuple_of_tensors(writer: Writer) -> None:
    state = writer.keep("cell", "(torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE))")
    writer.add("update", f"{state} = ({state}[0] * 0.5 + out.detach().mean(0), {state}[0])")


def iterator_that_is_advanced(writer: Writer) -> None:
    source = writer.keep("source", "itertools.count(1)")
    writer.add(writer.one_of(("begin", "update")), f"next({source})")


def batches_of_an_iterator(writer: Writer) -> None:
    source = writer.keep("batches", f"iter([t(seed, 8, {WIDTH}) for seed in range(90)])")
    writer.add("begin", f"x = next({source})[:len(x)]")


UNGRAPHED_FEATURES: dict[str, Feature] = {
    each.__name__.replace("_", " "): each
    for each in (
        value_that_is_read,
        number_that_is_returned,
        counter,
        log_that_grows,
        shape_that_depends_on_values,
        random_numbers_of_python,
        raises_for_a_value,
        rate_that_the_step_changes,
        whole_number_that_decides,
        data_that_is_rebound,
        list_that_is_made_anew,
        tuple_of_tensors,
        iterator_that_is_advanced,
        batches_of_an_iterator,
    )
}


def raises_for_a_number(writer: Writer) -> None:
    """In a call now and then; the others have a graph."""
    writer.variants = True
    number = writer.add_input("number", lambda seed, size, variant: str(variant))
    part = writer.one_of(("begin", "gradients", "update"))
    writer.add(part, f"if {number} == 1: raise ValueError('one')")


FEATURES["raises for a number"] = raises_for_a_number
