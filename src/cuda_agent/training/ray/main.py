"""The process of verl's trainer: `python -m cuda_agent.training.ray.main OVERRIDES`, a file with one override per line.

It ends with its parent, so a killed training leaves no cluster behind.
"""

import os
import sys
import threading
import time
from pathlib import Path


def main() -> None:
    """Composes the configuration, checks it with verl and runs the trainer."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    from cuda_agent.training.engine.compose import compose
    from cuda_agent.training.ray.overrides import validated

    config = validated(compose(Path(sys.argv[1]).read_text().splitlines()))
    run_ppo(config, task_runner_class=TaskRunnerV1)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    import ray

    ray.shutdown()
    os._exit(1)


if __name__ == "__main__":
    main()
