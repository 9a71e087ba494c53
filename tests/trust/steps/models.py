"""Draws the models of whole steps and their optimizers."""

from __future__ import annotations

from .writer import CLASSES, WIDTH, Writer

#: name: what it is in a model, behind a layer of width {w}
PIECES = {
    "tanh": "nn.Tanh()",
    "relu": "nn.ReLU()",
    "gelu": "nn.GELU()",
    "linear": "nn.Linear({w}, {w}, bias=False)",
    "layer norm": "nn.LayerNorm({w})",
    "batch norm": "nn.BatchNorm1d({w})",
    "group norm": "nn.GroupNorm(1, {w})",
    "rms norm": "nn.RMSNorm({w})",
    "dropout": "nn.Dropout(0.25)",
    "residual": "Residual({w})",
    "tied weights": "Tied({w})",
    "attention": "Attention({w})",
    "recurrent": "Recurrent({w})",
    "embedding": "Embedded({w})",
    "buffer written": "Remembering({w})",
    "buffer rebound": "Averaging({w})",
    "attribute rebound": "Recalling({w})",
    "frozen and unused": "Gated({w})",
    "random numbers": "Noisy({w})",
    "function with a backward": "Clipped({w})",
    "checkpoint": "Checkpointed({w})",
    "weight norm": "Normed({w}, 'weight_norm')",
    "spectral norm": "Normed({w}, 'spectral_norm')",
    "hooks": "Hooked({w})",
}
#: What runs as it is.
UNGRAPHED_PIECES = {
    "batch norm, cumulative": "nn.BatchNorm1d({w}, momentum=None)",
    "counter in a module": "Counting({w})",
    "sparse embedding": "Embedded({w}, sparse=True)",
}

#: name: what is made for the parameters {p}
OPTIMIZERS = {
    "sgd": "torch.optim.SGD({p}, lr=0.1)",
    "sgd momentum": "torch.optim.SGD({p}, lr=0.1, momentum=0.75)",
    "sgd nesterov": "torch.optim.SGD({p}, lr=0.1, momentum=0.75, nesterov=True, foreach=False)",
    "sgd decay": "torch.optim.SGD({p}, lr=0.1, weight_decay=0.1, foreach=True, maximize=True)",
    "sgd dampened": "torch.optim.SGD({p}, lr=0.1, momentum=0.5, dampening=0.25, foreach=True)",
    "sgd fused": "torch.optim.SGD({p}, lr=0.1, momentum=0.75, fused=True)",
    "adam fused": "torch.optim.Adam({p}, lr=0.05, fused=True)",
    "adamw fused": "torch.optim.AdamW({p}, lr=0.05, fused=True, amsgrad=True)",
    "adam, rate in a tensor": "torch.optim.Adam({p}, lr=torch.tensor(0.05), fused=True)",
    "adagrad fused": "torch.optim.Adagrad({p}, lr=0.1, fused=True)",
    "rmsprop": "torch.optim.RMSprop({p}, lr=0.05)",
    "rmsprop centered": "torch.optim.RMSprop({p}, lr=0.05, centered=True, momentum=0.5)",
    "adadelta": "torch.optim.Adadelta({p}, lr=0.5)",
    "rprop": "torch.optim.Rprop({p}, lr=0.05)",
}
#: What counts its steps on the host, and reads them.
UNGRAPHED_OPTIMIZERS = {
    "sgd, rate in a tensor": "torch.optim.SGD({p}, lr=torch.tensor(0.1), foreach=False)",
    "adam": "torch.optim.Adam({p}, lr=0.05)",
    "adamw one by one": "torch.optim.AdamW({p}, lr=0.05, foreach=False)",
    "adagrad": "torch.optim.Adagrad({p}, lr=0.1)",
    "adamax": "torch.optim.Adamax({p}, lr=0.05)",
    "nadam": "torch.optim.NAdam({p}, lr=0.05)",
    "radam": "torch.optim.RAdam({p}, lr=0.05)",
    "asgd": "torch.optim.ASGD({p}, lr=0.05)",
}


def model(writer: Writer, wide: int = WIDTH, outputs: int = CLASSES, most: int = 2) -> str:
    """The expression of a new model."""
    width = writer.one_of((4, 5))
    layers = [f"nn.Linear({wide}, {width})"]
    for _ in range(writer.integer(0, most)):
        names = tuple(UNGRAPHED_PIECES) if writer.once_in(40) else tuple(PIECES)
        name = writer.one_of(names)
        layers.append({**PIECES, **UNGRAPHED_PIECES}[name].format(w=width))
        writer.has(name)
    layers.append(f"nn.Linear({width}, {outputs})")
    return f"nn.Sequential({', '.join(layers)}).to(DEVICE)"


def optimizer(writer: Writer, name: str, learner: str) -> str:
    """A new optimizer in the state, of the parameters of a model."""
    kinds = UNGRAPHED_OPTIMIZERS if writer.once_in(16) else OPTIMIZERS
    kind = writer.one_of(tuple(kinds))
    writer.has(kind)
    parameters = f"{learner}.parameters()"
    if writer.once_in(5):
        writer.has("two groups of parameters")
        parameters = (
            f"[{{'params': list({learner}.parameters())[:1], 'lr': 0.025}}, "
            f"{{'params': list({learner}.parameters())[1:]}}]"
        )
    made = writer.keep(name, kinds[kind].format(p=parameters))
    writer.optimizers.append(made)
    return made
