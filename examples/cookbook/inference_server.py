"""An inference server: requests of many sizes, in several threads, served by one captured model."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.nn import functional as F

import pygraph

device, place = ("cuda", "cuda") if torch.cuda.is_available() else ("cpu", "twin")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
model = model.to(device).eval()

SIZES = (1, 2, 4, 8)  # of batches; each has a graph of its own


@pygraph.capture(device=place, max_programs=len(SIZES))
@torch.inference_mode()
def serve(batch):
    return model(batch).softmax(-1)


def warm_up():
    """Before there are requests: each size until it has its graph."""
    for size in SIZES:
        for _ in range(3):
            serve(torch.zeros(size, 32, device=device))


def answer(request):
    """Of up to 8 rows, which are padded to the next size."""
    rows = request.shape[0]
    size = next(size for size in SIZES if size >= rows)
    return serve(F.pad(request, (0, 0, 0, size - rows)))[:rows]


warm_up()
requests = [torch.randn(1 + number % 8, 32, device=device) for number in range(64)]
with ThreadPoolExecutor(4) as threads:
    answers = list(threads.map(answer, requests))  # all are kept; no call overwrites another's

report = pygraph.report()
print(report)

with torch.inference_mode():
    for request, found in zip(requests, answers, strict=True):
        torch.testing.assert_close(found, model(request).softmax(-1))
assert [graph.state for graph in report.graphs] == ["graphed"] * len(SIZES), report
assert all(graph.replays for graph in report.graphs), report

serve.release()  # its graphs and their memory; later calls run as they are
assert answer(requests[0]).shape == (1, 8)
