"""What the demonstration ends with: what a user may do now."""

from pygraph.demo import small_models

_IN_A_PROGRAM = """
What next
  In a program:
      import torch, pygraph
      model = torch.compile(model, backend="pygraph")
      with torch.no_grad():
          y = model(x)
      print(pygraph.report())    # what became of every compiled graph, and why
"""

WITH_GPU = f"""{_IN_A_PROGRAM}\
  Without running it, what would be captured of a model: pygraph plan --help
  (in a checkout, pygraph is .venv/bin/pygraph)
  Small models: pygraph demo --model {", ".join(small_models.NAMES)}
  In a checkout, nine models in all modes: ./run demo; the paper's 25 workloads: ./run bench
  Options, limits and how it works: README.md and docs/design.md"""

WITHOUT_GPU = f"""{_IN_A_PROGRAM}\
      Without a GPU: torch.compile(model, backend="pygraph", options={{"device": "twin"}})
  What would be captured of a model of your own: pygraph plan --help
  (in a checkout, pygraph is .venv/bin/pygraph)
  Speed is measured on a machine with an NVIDIA GPU, by this same command
  More models on the twin: --twin-model {", ".join(small_models.NAMES[1:])}
  Plans of more models: --models NAME,...
  Options, limits and how it works: README.md, docs/twin.md and docs/design.md"""
