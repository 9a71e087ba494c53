"""A small model as one CUDA graph. Without a GPU it runs on PyGraph's CPU twin."""

import torch

import pygraph

device, options = ("cuda", {}) if torch.cuda.is_available() else ("cpu", {"device": "twin"})
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model = torch.compile(model.to(device), backend="pygraph", options=options)
with torch.no_grad():
    for _ in range(10):  # another input each time, at an address of its own
        y = model(torch.randn(16, 64, device=device))
print(pygraph.report())  # what became of every compiled graph, and why
