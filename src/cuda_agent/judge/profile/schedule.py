"""Decides which programs a timing round runs, and when the rounds are enough.

Time is spent where it gives information. A baseline whose ratio is known takes part in every fourth round only (eager
in all, because it says what the outputs must be), one that is far from the fastest in none, and the null program in
every fourth once its median is known.
"""

import random
from dataclasses import dataclass, field

from cuda_agent.core import intervals
from cuda_agent.core.baselines import COMPILE, EAGER
from cuda_agent.core.config import JudgeOptions
from cuda_agent.judge.profile import timing
from cuda_agent.judge.profile.baselines import NULL, Baselines
from cuda_agent.judge.profile.bursts import Round
from cuda_agent.judge.profile.rings import LEAST_CALLS

CANDIDATE = "candidate"
#: rounds that are made even when the budget is over.
LEAST_ROUNDS = 5
#: the most rounds; more would only lengthen the report.
MOST_ROUNDS = 400
#: rounds of a search's turn. A ratio that isn't clear by then is near the milestone, and its interval shows that.
COARSE_ROUNDS = 60
#: a form that isn't needed is timed further only within this factor of the fastest matched one.
NEAR = 1.15
#: a form that was this many times slower than the fastest matched one isn't timed in the session's next timings.
FAR = 1.5
#: rounds that count as one independent one, above which the report says so.
MOODY = 4.0
#: share of the budget after which a ratio's side of the milestone is enough, where ±1 % can't be reached.
ENOUGH_SHARE = 0.6
#: share of rounds in which a program without new information is still timed.
SELDOM = 0.25
#: share of the budget that the planned rounds may take, which determines the number of active slots. Bursts of more
#: than the least calls leave time for PLANNED_ROUNDS.
PLANNED_SHARE, PLANNED_ROUNDS = 0.6, 28


def affordable(wanted: int, calls: float) -> int:
    """Returns the calls of a burst, where the budget has `calls` for all rounds: the wanted number where that leaves
    the planned rounds, at least `LEAST_CALLS` where these leave the least rounds."""
    return max(1, min(wanted, max(int(calls / PLANNED_ROUNDS), min(LEAST_CALLS, int(calls / LEAST_ROUNDS)))))


@dataclass
class Schedule:
    """The schedule of one candidate's rounds. A baseline that fails takes no further part."""

    options: JudgeOptions
    baselines: Baselines
    rng: random.Random
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        #: baselines whose ratio is known to ±1 %, and those whose side of the milestone is clear.
        self._settled: set[str] = set()
        self._decided: set[str] = set()

    @property
    def coarse(self) -> bool:
        """Whether it is enough to know on which side of the milestone each ratio is."""
        return self.options.timing_stop == "decided"

    def add(self, made: Round) -> None:
        """Adds a round. Each ratio is evaluated when it has a new sample, and only at its own checkpoints."""
        self.rounds.append(made)
        for name in self.needed():
            values = self.ratios(name) if name in made.bursts else []
            if timing.is_settled(values):
                self._settled.add(name)
            if name in self._settled or timing.is_decided(values, coarse=self.coarse):
                self._decided.add(name)

    def is_done(self, left_s: float) -> bool:
        """Whether the rounds are enough. `left_s` is the rest of the time budget."""
        count, budget_s = len(self.rounds), self.options.timing_budget_s
        # Few rounds are enough for long calls; a short one's events need rounds to be checked.
        patience = 1.0 if timing.is_explained(self.rounds, CANDIDATE) else 5.0
        if count >= MOST_ROUNDS or left_s < -patience * budget_s:
            return count > 0
        if count < LEAST_ROUNDS:
            return False
        early = self.coarse or left_s < (1.0 - ENOUGH_SHARE) * budget_s
        known = self._decided if early else self._settled
        return left_s <= 0 or (self.coarse and count >= COARSE_ROUNDS) or known.issuperset(self.needed())

    def taking_part(self) -> list[str]:
        """Returns the programs of the next round in random order. Candidate and eager are always among them."""
        names = [CANDIDATE, *self.baselines.forms, NULL]
        if len(self.rounds) >= timing.MIN_ROUNDS:
            needed = self.needed()
            nearest = NEAR * intervals.median(self.ratios(self.matched()))
            forms = self.baselines.forms
            near = [name for name in forms if name in needed or intervals.median(self.ratios(name)) <= nearest]
            seldom = self._settled - {EAGER} | {NULL}
            names = [CANDIDATE] + [n for n in (*near, NULL) if n not in seldom or self.rng.random() < SELDOM]
        self.rng.shuffle(names)
        return names

    def ratios(self, name: str) -> list[float]:
        return timing.paired_ratios(self.rounds, name, CANDIDATE)

    def matched(self) -> str:
        """The fastest form at the precision policy so far, by its ratio. Forms that weren't in the same rounds have met
        other clocks, but each met the candidate."""
        forms = [name for name, matched in self.baselines.forms.items() if matched and self.has(name)]
        return min(forms or [EAGER], key=lambda name: intervals.median(self.ratios(name)))

    def has(self, name: str) -> bool:
        """Whether the program was timed."""
        return any(name in found.bursts for found in self.rounds)

    def needed(self) -> list[str]:
        """Returns the baselines whose ratios a verdict shows."""
        wanted = {EAGER, COMPILE, self.matched()}
        return [name for name in self.baselines.forms if name in wanted]

    def far(self) -> dict[str, float]:
        """Returns the forms that no verdict shows and that aren't worth another timing -> how many times slower they
        are than the fastest matched one."""
        nearest = intervals.median(self.ratios(self.matched()))
        known = {name: self.ratios(name) for name in self.baselines.forms if name not in self.needed()}
        times = {n: intervals.median(v) / nearest for n, v in known.items() if len(v) >= timing.MIN_ROUNDS}
        return {name: factor for name, factor in times.items() if factor >= FAR}

    def said(self) -> str:
        """Returns one line of progress."""
        known = [(name, self.ratios(name)) for name in self.needed()]
        said = [f"{intervals.median(values):.2f}x over {name}" for name, values in known if values]
        return ", ".join([f"round {len(self.rounds)}", *said])

    def remarks(self) -> list[str]:
        """Returns notes for the report: how the rounds ended, and whether they depended on each other."""
        said = []
        if len(self.rounds) < timing.MIN_ROUNDS:
            said.append(f"only {len(self.rounds)} rounds fit the budget: intervals are [min, max]")
        elif self._settled.issuperset(self.needed()):
            pass
        elif self._decided.issuperset(self.needed()):
            said.append("the rounds ended when it was clear on which side of 1/0.95 each ratio lies, before ±1 %")
        elif self.coarse and len(self.rounds) >= COARSE_ROUNDS:
            said.append(f"{COARSE_ROUNDS} rounds don't tell on which side of 1/0.95 each ratio lies; a turn ends here")
        elif self.coarse:
            said.append("the time budget ended before it was clear on which side of 1/0.95 each ratio lies")
        else:
            said.append("the time budget ended before every ratio was known to ±1 %")
        moods = {name: intervals.dependence(self.ratios(name)) for name in self.needed()}
        worst = max(moods, key=lambda name: moods[name], default=EAGER)
        if moods.get(worst, 1.0) > MOODY:
            said.append(
                f"rounds aren't independent here ({worst}: {moods[worst]:.0f} count as one): intervals are wider"
            )
        return said
