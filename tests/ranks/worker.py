"""One rank: runs scenarios, and writes down what each has found."""

from __future__ import annotations

import datetime
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks import scenarios, training  # noqa: F401
from tests.ranks.launch import ON_GPUS, TIME_OUT_S


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    where: dict[str, Any] = {}
    if ON_GPUS:
        torch.cuda.set_device(rank)
        where["device_id"] = torch.device("cuda", rank)
    time_out = datetime.timedelta(seconds=TIME_OUT_S)
    dist.init_process_group("nccl" if ON_GPUS else "gloo", timeout=time_out, **where)
    found: dict[str, Any] = {}
    out = Path(os.environ["OUT"])
    for name in sys.argv[1:]:
        try:
            found[name] = scenarios.run(name)
        except Exception:
            found[name] = {"error": traceback.format_exc()}
        part = out.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(out)
        if "error" in found[name]:
            # The other rank may wait in a collective that does not come.
            os._exit(1)
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads now and then end a process that ends at the same time


if __name__ == "__main__":
    main()
