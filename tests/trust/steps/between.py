"""What a program does between two calls of its step, to what the step works on."""

from __future__ import annotations

_EACH = "for p in $net.parameters(): "
_TRAINED = "for p in $net.parameters():\n    if p.grad is not None: "

#: name: lines
EVENTS: dict[str, tuple[str, ...]] = {
    "state is loaded": (
        "$net.load_state_dict({k: v * 0.5 if v.is_floating_point() else v.clone()"
        " for k, v in $net.state_dict().items()})",
    ),
    "parameters move": (_EACH + "p.data = p.data.clone()",),
    "parameters are flattened": (
        "flat = torch.zeros(2048, device=DEVICE)",
        "for n, p in enumerate($net.parameters()):",
        "    place = flat[64 * n : 64 * n + p.numel()].view_as(p)",
        "    if p.numel() <= 64:",
        "        p.data = place.copy_(p.data)",
    ),
    "a parameter is replaced": ("$net[0].weight = nn.Parameter($net[0].weight.detach().clone())",),
    "a layer is replaced": ("$net[0] = copy.deepcopy($net[0])",),
    "a layer is added": ("$net.append(nn.Tanh())",),
    "the model is copied": ("$net = copy.deepcopy($net)",),
    "parameters are written": ("with torch.no_grad():", "    " + _EACH + "p.mul_(0.75)"),
    "a parameter is frozen": ("$net[0].bias.requires_grad_(not $net[0].bias.requires_grad)",),
    "buffers are replaced": (
        "for module in $net.modules():",
        "    for name, each in list(module.named_buffers(recurse=False)):",
        "        setattr(module, name, each.clone())",
    ),
    "the model evaluates": ("$net.eval()",),
    "the model trains": ("$net.train(not $net.training)",),
    "gradients are dropped": (_EACH + "p.grad = None",),
    "gradients are zeroed": (*_TRAINED.split("\n")[:1], _TRAINED.split("\n")[1] + "p.grad.zero_()"),
    "gradients are replaced": (
        *_TRAINED.split("\n")[:1],
        _TRAINED.split("\n")[1] + "p.grad = torch.full_like(p.grad, 0.5)",
    ),
    "gradients are set": (
        "for p in $net.parameters():",
        "    if p.requires_grad: p.grad = torch.ones_like(p)",
    ),
    "gradients change places": (
        "same = [p for p in $net.parameters() if p.grad is not None]",
        "for p, q in zip(same, same[1:]):",
        "    if p.shape == q.shape: p.grad, q.grad = q.grad, p.grad",
    ),
    "a hook is added": ("$net[0].register_forward_hook(lambda m, a, out: out * 0.5)",),
    "a hook of a gradient is added": (
        "if $net[0].weight.requires_grad: $net[0].weight.register_hook(lambda g: g * 0.5)",
    ),
    "memory is collected": ("gc.collect()",),
}
#: Those of a step with an optimizer.
EVENTS_OF_OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "the rate changes": ("for group in $steps.param_groups: group['lr'] = group['lr'] * 0.5",),
    "an option changes": ("for group in $steps.param_groups: group['weight_decay'] = 0.05",),
    "the optimizer's state is loaded": (
        "$steps.load_state_dict(copy.deepcopy($steps.state_dict()))",
    ),
    "the optimizer's state is dropped": ("$steps.state.clear()",),
    "a group is added": (
        "$more = nn.Parameter(torch.ones(3, device=DEVICE))",
        "$steps.add_param_group({'params': [$more]})",
    ),
    "all gradients are dropped": ("$steps.zero_grad()",),
}
#: In front of every call.
SCHEDULES: dict[str, tuple[str, ...]] = {
    "a rate that decays": ("for group in $steps.param_groups: group['lr'] = group['lr'] * 0.9",),
    "a rate of a schedule": ("$schedule.step()",),
}
SCHEDULERS = (
    "torch.optim.lr_scheduler.StepLR($steps, 2, 0.5)",
    "torch.optim.lr_scheduler.CosineAnnealingLR($steps, 20)",
    "torch.optim.lr_scheduler.LambdaLR($steps, lambda n: 0.95**n)",
    "torch.optim.lr_scheduler.OneCycleLR($steps, 0.1, 100, cycle_momentum=False)",
)
