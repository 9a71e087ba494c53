"""Makes a package of an MLP, lets the C++ program replay it, and compares with torch.

python examples/aotinductor/compare.py build/release/examples/aotinductor/aotinductor
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch


def replayed(program: Path, model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """What the program computes of each input, by the package that it is given."""
    with tempfile.TemporaryDirectory() as folder:
        package, given, made = (Path(folder, name) for name in ("mlp.pt2", "inputs", "outputs"))
        exported = torch.export.export(model, (inputs[0],))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(package))
        given.write_bytes(inputs.cpu().numpy().tobytes())
        subprocess.run([program, package, given, made], check=True)
        return torch.frombuffer(bytearray(made.read_bytes()), dtype=torch.float32)


def main() -> None:
    program = Path(sys.argv[1])
    if not program.exists():
        sys.exit(f"{program} is not there; its build says why")
    torch.manual_seed(0)
    layers = torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 128)
    model = torch.nn.Sequential(*layers).cuda().eval()
    inputs = torch.randn(3, 64, 256, device="cuda")
    with torch.no_grad():
        found = replayed(program, model, inputs)
        torch.testing.assert_close(found.view(3, 64, 128), model(inputs).cpu())
    print("the outputs of the program are torch's")


if __name__ == "__main__":
    main()
