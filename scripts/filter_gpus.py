"""Runs `tasks filter` on every GPU of a machine, each with a share of the cores, and packs the findings in an archive.

    python3 scripts/filter_gpus.py runs/dataset --candidates data/candidates.jsonl.gz --stop-after-s 500 --out $OUT
    python3 scripts/filter_gpus.py runs/dataset --known filtered-1.tgz ...      # goes on from an archive of another run

FOLDER gets the candidates where it has none. Each GPU works on its own shard in FOLDER/gpuN. Afterwards FOLDER has the
findings of all, and OUT/filtered.tgz has its files of measurements and checks. Known tasks aren't measured again.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.cli.support.errors import plainly
from cuda_agent.core.stack import query_gpus
from cuda_agent.tasks.filter.measurements import merge
from cuda_agent.tasks.filter.run import Shard
from cuda_agent.tasks.records import CANDIDATES_FILE

_COMMAND = "import sys; from cuda_agent.cli.main import run; sys.exit(run(sys.argv[1:]))"
FOUND = ("measurements-*.jsonl", "checks-*.jsonl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--candidates", type=Path, help="candidates.jsonl, or .gz")
    parser.add_argument(
        "--known", type=Path, action="append", default=[], help="archive of an earlier run, or a file of measurements"
    )
    parser.add_argument("--stop-after-s", type=float, default=500.0, help="begin no task after this many seconds")
    parser.add_argument("--shard", default="1/1", help="I/N: this machine's part of the candidates")
    parser.add_argument("--gpus", nargs="*", help="numbers of GPUs; default all")
    parser.add_argument("--out", type=Path, help="folder for the archive")
    parser.epilog = "Other options go to `tasks filter`."
    options, more = parser.parse_known_args()
    prepare(options.folder, options.candidates, options.known)
    gpus = options.gpus if options.gpus is not None else [str(index) for index in range(len(query_gpus()[0]))]
    shard = Shard.parse(options.shard)
    codes = work(options.folder, gpus or [""], shard, ["--stop-after-s", str(options.stop_after_s), *more])
    collect(options.folder)
    if options.out is not None:
        print(f"packed: {pack(options.folder, options.out)}")
    return max(codes)


def prepare(folder: Path, candidates: Path | None, known: Sequence[Path]) -> None:
    """Puts the candidates and the findings of earlier runs into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if candidates is not None and not (folder / CANDIDATES_FILE).exists():
        raw = candidates.read_bytes()
        (folder / CANDIDATES_FILE).write_bytes(gzip.decompress(raw) if candidates.suffix == ".gz" else raw)
    for number, archive in enumerate(known):
        found = archive
        if tarfile.is_tarfile(archive):
            found = folder / f"known{number}"
            with tarfile.open(archive) as packed:
                # Python 3.11.2 (Debian 12) has no filters.
                safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                packed.extractall(found, **safely)
        merge(folder, [found])
    collect(folder)


def work(folder: Path, gpus: Sequence[str], shard: Shard, more: Sequence[str]) -> list[int]:
    """Runs one filter for each GPU. Returns their exit codes."""
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // len(gpus))
    running = []
    for place, gpu in enumerate(gpus):
        part = folder / f"gpu{gpu or 'none'}"
        part.mkdir(exist_ok=True)
        for pattern in (CANDIDATES_FILE, *FOUND):
            for path in folder.glob(pattern):
                shutil.copyfile(path, part / path.name)
        mine = set(cores[place * each : (place + 1) * each])
        index = (shard.index - 1) * len(gpus) + place + 1
        command = [
            sys.executable, "-c", _COMMAND, "tasks", "filter", str(part), "--shard",
            f"{index}/{shard.count * len(gpus)}", *more,
        ]  # fmt: skip
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
        os.sched_setaffinity(0, mine)
        running.append(subprocess.Popen(command, env=environment))
        os.sched_setaffinity(0, set(cores))
    return [process.wait() for process in running]


def collect(folder: Path) -> None:
    """Merges the findings of the GPUs into the folder."""
    parts = [part for part in sorted(folder.glob("gpu*")) if list(part.glob(FOUND[0]))]
    if parts:
        for name, count in merge(folder, parts).items():
            print(f"{name}: {count} new")


def pack(folder: Path, out: Path) -> Path:
    path = out / "filtered.tgz"
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as packed:
        for pattern in FOUND:
            for file in sorted(folder.glob(pattern)):
                packed.add(file, file.name)
    return path


if __name__ == "__main__":
    sys.exit(plainly(main))
