"""Times filtered tasks again, one by one on an idle machine, and compares the times with those of the filter.

    python3 benchmarks/task_times.py runs/dataset                       # 40 tasks at random, within 10 %
    python3 benchmarks/task_times.py runs/dataset --count 100 --seed 1

FOLDER is a folder of `tasks filter` from this machine's stack. Nothing else runs during a timing here.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from pathlib import Path

from common import arguments, chosen_device, failed, run, save, table

from cuda_agent.core.lines import append
from cuda_agent.core.stack import read_stack
from cuda_agent.tasks.filter.measurements import Journal, read_measured, stack_for
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.run import filter_folder, read_candidates
from cuda_agent.tasks.records import CANDIDATES_FILE

WITHIN = 0.10
#: this share of the tasks may differ more, because some launches run beside another process.
MAY_MISS = 0.05


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = chosen_device(options.device)
    journal = Journal(options.folder, stack_for(read_stack(), device))
    timed = {key: one for key, one in journal.measured.items() if one.eager_us and key in journal.checked}
    tasks = [task for task in read_candidates(options.folder) if task.task.key in timed]
    if not tasks:
        failed(f"{options.folder} holds no times of this stack that can be taken again: bring its checks-*.jsonl, too")
    chosen = random.Random(options.seed).sample(tasks, min(options.count, len(tasks)))
    with tempfile.TemporaryDirectory(prefix="cuda-agent-times-") as name:
        alone = Path(name)
        append(alone / CANDIDATES_FILE, chosen)
        Journal(alone, stack_for(read_stack(), device))
        append(alone / journal.checks_path.name, [journal.checked[task.task.key] for task in chosen])
        wide = {"window_ms": (0.0, 1e9)}
        filtering = FilterOptions.parse({"device": device.value, "workers": 1, "lanes": 1, **wide})
        done = filter_folder(alone, filtering, print)
        again = read_measured(done.path).by_key
    rows, ratios = [], []
    for task in chosen:
        before, after = timed[task.task.key].eager_us, again[task.task.key].eager_us if task.task.key in again else None
        if before is None or after is None:
            continue
        ratios.append(before / after)
        rows.append([task.task.name, f"{before / 1e3:.3f}", f"{after / 1e3:.3f}", f"{before / after - 1:+.1%}"])
    print(table(["task", "filter ms", "alone ms", "apart"], rows))
    apart = sorted(abs(ratio - 1) for ratio in ratios)
    missed = sum(one > WITHIN for one in apart)
    print(
        f"\n{len(apart)} tasks: median {statistics.median(apart):.1%} apart, most {apart[-1]:.1%}, {missed} over 10 %"
    )
    print(f"raw samples: {save('task-times', options, device, {'ratios': ratios, 'rows': rows})}")
    if missed > MAY_MISS * len(apart):
        failed(f"{missed} of {len(apart)} times are more than {WITHIN:.0%} apart")
    return 0


if __name__ == "__main__":
    run(main)
