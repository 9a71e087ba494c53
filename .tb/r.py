import sys
sys.path.insert(0, ".")
from tests.ranks.launch import launch
for rank, e in enumerate(launch(sys.argv[2:], float(sys.argv[1]))):
    print("== rank", rank, "status", e.status, round(e.seconds,1))
    for k, v in e.results.items(): print("  ", k, v if "error" not in v else v["error"])
    print("\n".join(l for l in e.log.splitlines() if "TensorFloat32" not in l and "warnings.warn" not in l)[-2500:])
