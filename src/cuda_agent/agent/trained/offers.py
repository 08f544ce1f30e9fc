"""The playbook's plans for one task as choices: a few plans, each with a few settings.

A small policy doesn't write kernels. It chooses among these plans by real tool calls. Tunables have letters as names,
so a call that sets one is short. A plan's files are under `plans/NUMBER/` of the workspace.
"""

import base64
import gzip
import itertools
import random
import shlex
from collections.abc import Callable, Iterator
from functools import partial

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.graph import Graph
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.record import Record
from cuda_agent.core.records import Candidate
from cuda_agent.playbook.plan import Options
from cuda_agent.playbook.proposal import Proposal, other_options, propose
from cuda_agent.workspace.skills import skill_notes

PLANS = "plans"
#: settings of one plan at most, and kernels of a plan besides the default one at most.
MOST_SETTINGS, MOST_STEPS = 6, 6
#: variants of the default plan that are offered, by what the playbook does otherwise.
_VARIANTS = {Options(channels_last=True): "last"}
_LETTERS = "abcdefgh"
#: characters of one command at most; Linux accepts 128 KiB.
_LONGEST_COMMAND = 100_000


class OfferedKernel(Record):
    """A kernel of a plan: its kind, and its tunable if the policy can choose it."""

    kind: str
    tunable: str | None = None


class Offer(Record):
    """A plan. `tunables`: letter -> number of settings, of which 0 is the default. `name` is its variant: `fused` (the
    default), `last` (channels innermost), `full` (products in float32), `split` (a kernel for each operator)."""

    name: str
    files: dict[str, str]
    tunables: dict[str, int]
    steps: tuple[OfferedKernel, ...]

    def settings(self) -> Iterator[dict[str, int]]:
        """Yields all settings, the default first."""
        for choice in itertools.product(*(range(count) for count in self.tunables.values())):
            yield dict(zip(self.tunables, choice, strict=True))

    def candidate(self, setting: dict[str, int]) -> Candidate:
        """Returns the plan as it stands in the workspace after the edits of a setting."""
        module = self.files["model_new.py"]
        for letter, value in setting.items():
            module = module.replace(assignment(letter, 0), assignment(letter, value))
        return Candidate(files={**self.files, "model_new.py": module})


def assignment(letter: str, value: int) -> str:
    """Returns the text that sets a tunable in `model_new.py`."""
    return f'"{letter}": {value}'


def offers(graph: Graph, device: Device, precision: Precision, key: str) -> tuple[Offer, ...]:
    """Returns different plans for the graph. Their order depends on the task's `key` alone, so it says nothing about
    their speed. Raises NotCovered if the playbook has no plan."""
    default = propose(graph, device, precision)
    found = {"fused": default}
    for options in other_options(graph, device, default):
        if options in _VARIANTS:
            _add(found, _VARIANTS[options], partial(propose, graph, device, precision, options))
    if device is Device.CUDA and precision is not Precision.FP32:
        _add(found, "full", partial(propose, graph, device, Precision.FP32))
    _add(found, "split", partial(propose, graph, device, precision, Options(fused=False)))
    plans = [_offer(name, proposal) for name, proposal in found.items()]
    random.Random(digest_text("offers", key)).shuffle(plans)
    return tuple(plans)


def laid_out(plans: tuple[Offer, ...]) -> dict[str, str]:
    """Returns path in the workspace -> text."""
    return {
        f"{PLANS}/{number}/{path}": text for number, plan in enumerate(plans, 1) for path, text in plan.files.items()
    }


def laying_out(plans: tuple[Offer, ...]) -> list[str]:
    """Returns as few shell commands as possible that write these files. The length of a command is limited."""
    commands: list[str] = []
    for path, text in laid_out(plans).items():
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        folder, name = shlex.quote(path.rpartition("/")[0]), shlex.quote(path)
        command = f"mkdir -p {folder} && echo {packed} | base64 -d | gunzip > {name}"
        if commands and len(commands[-1]) + len(command) < _LONGEST_COMMAND:
            commands[-1] += f" && {command}"
        else:
            commands.append(command)
    return commands


def taking(number: int) -> str:
    """Returns the shell command that puts a plan in place."""
    return f"rm -rf kernels && cp -r {PLANS}/{number}/. ."


def _add(found: dict[str, Proposal], name: str, make: Callable[[], Proposal]) -> None:
    try:
        proposal = make()
    except NotCovered:
        return
    if len(proposal.steps) <= MOST_STEPS and all(proposal.files != other.files for other in found.values()):
        found[name] = proposal


def _offer(name: str, proposal: Proposal) -> Offer:
    """Makes an offer of a plan, with the tunables that usually matter most, up to `MOST_SETTINGS` settings."""
    counts: dict[str, int] = {}
    room = MOST_SETTINGS
    order = {notes.kernels: notes.order for notes in skill_notes()}
    ranked = sorted(proposal.tunables, key=lambda tunable: order.get(_kind(tunable), max(order.values())))
    for tunable in ranked if name != "split" else ():
        count = min(proposal.tunables[tunable], room)
        if count > 1 and len(counts) < len(_LETTERS):
            counts[tunable] = count
            room //= count
    letters = dict(zip(counts, _LETTERS, strict=False))
    module = proposal.files["model_new.py"]
    for tunable, letter in letters.items():
        module = module.replace(f'"{tunable}"', f'"{letter}"')
    steps = [OfferedKernel(kind=_kind(step), tunable=letters.get(step)) for step in proposal.steps]
    known = {step.tunable for step in steps}
    # Products and convolutions are named in CONFIG by their shapes, not by their steps.
    for tunable, letter in letters.items():
        if letter not in known:
            at = next((i for i, s in enumerate(steps) if s.kind == _kind(tunable) and s.tunable is None), None)
            if at is not None:
                steps[at] = OfferedKernel(kind=steps[at].kind, tunable=letter)
    return Offer(
        name=name,
        files={**proposal.files, "model_new.py": module},
        tunables={letters[tunable]: count for tunable, count in counts.items()},
        steps=tuple(steps),
    )


def _kind(name: str) -> str:
    """Returns the kind of a kernel or a tunable, which its name begins with."""
    return name.partition("_")[0]
