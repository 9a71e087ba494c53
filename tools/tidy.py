"""clang-tidy over src/, in parallel, skipping files that were clean and have not changed since.

    python tools/tidy.py BUILD_DIRECTORY      (with compile_commands.json in it)

Clean means clean with these checks, this clang-tidy, this file and these headers of ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The compile commands are GCC's: clang need not know its warnings, nor add its own (-w).
EXTRA = ["--extra-arg=-w", "--extra-arg=-Wno-unknown-warning-option"]


def main(build: Path) -> int:
    commands = {
        Path(entry["file"]): entry["command"]
        for entry in json.loads((build / "compile_commands.json").read_text())
        if Path(entry["file"]).is_relative_to(ROOT / "src")
    }
    if not commands:
        print(f"tidy: no file of src/ in {build / 'compile_commands.json'}", file=sys.stderr)
        return 1

    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    common = hashlib.sha256(version)
    ours = [ROOT / ".clang-tidy", *sorted(ROOT.glob("src/**/*.h"))]
    ours += sorted(p for p in ROOT.glob("include/**/*") if p.is_file())
    for path in ours:
        common.update(path.read_bytes())
    clean = build / "tidy"
    clean.mkdir(exist_ok=True)

    def check(path: Path) -> bool:
        digest = common.copy()
        digest.update(f"{path}{commands[path]}".encode() + path.read_bytes())
        stamp = clean / digest.hexdigest()
        if stamp.exists():
            return True
        tidy = ["clang-tidy", "--quiet", "-p", str(build), *EXTRA, str(path)]
        done = subprocess.run(tidy, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            stamp.touch()
            return True
        print(done.stdout.strip() or done.stderr.strip(), flush=True)
        return False

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(check, sorted(commands, key=lambda p: -p.stat().st_size)))
    print(f"tidy: {results.count(True)} of {len(results)} files clean")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
