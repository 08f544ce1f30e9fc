"""Which programs take part in a timing round, by what is known of them. No process is started."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.judge.profile.baselines import Baselines
from cuda_agent.judge.profile.bursts import Burst, Round
from cuda_agent.judge.profile.schedule import CANDIDATE, Schedule
from cuda_agent.judge.profile.timing import MIN_ROUNDS

TIMES = {"eager": 300.0, "compile": 110.0, "compile_tf32": 100.0, "eager_tf32": 290.0, "graphs_tf32": 140.0}


def after(rounds: int, times: dict[str, float]) -> Schedule:
    forms = {name: name.endswith("tf32") for name in times}
    found = Schedule(
        JudgeOptions(device=Device.CUDA), cast(Baselines, cast(Any, SimpleNamespace(forms=forms))), random.Random(0)
    )
    for _ in range(rounds):
        bursts = {name: Burst((us,) * 5, 5 * us) for name, us in {**times, CANDIDATE: 90.0}.items()}
        found.add(Round(bursts=bursts))
    return found


def test_what_is_far_from_the_fastest_matched_form_and_in_no_verdict() -> None:
    assert after(MIN_ROUNDS, TIMES).matched() == "compile_tf32"
    assert after(MIN_ROUNDS, TIMES).far() == {"eager_tf32": 2.9}, "eager and compile are in every verdict"
    assert after(MIN_ROUNDS, TIMES | {"graphs_tf32": 150.0}).far().keys() == {"eager_tf32", "graphs_tf32"}
    assert after(MIN_ROUNDS - 1, TIMES).far() == {}, "too few rounds say nothing"
