"""Parses the compilers' reports: `ptxas -v` on registers, shared memory and spills; g++ on vectorised loops."""

import re
from collections.abc import Iterable

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_WHY = re.compile(r"couldn't vectorize loop|not vectorized")
_NO_REASON = "couldn't vectorize loop"
_LOOP = re.compile(r"^(\S+?):(\d+):\d+: (optimized|missed): +(.*)$", re.MULTILINE)


def parse_ptxas(text: str) -> dict[str, dict[str, int]]:
    """Maps the mangled name of each kernel to the resources that it uses, by the names of `KernelCode`'s fields: bytes
    of stack and spills per thread, those of static shared memory per block. Device functions that aren't inlined are
    left out."""
    found: dict[str, dict[str, int]] = {}
    entry: str | None = None
    spills: dict[str, dict[str, int]] = {}
    named: str | None = None
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            entry = match.group(1)
        elif match := _PROPERTIES.search(line):
            named = match.group(1)
        elif (match := _SPILLS.search(line)) and named is not None:
            names = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
            spills[named] = dict(zip(names, map(int, match.groups()), strict=True))
        elif (match := _USED.search(line)) and entry is not None:
            shared = _SHARED.search(line)
            own = {"registers": int(match.group(1)), "shared_bytes": int(shared.group(1)) if shared else 0}
            found[entry] = own | spills.get(entry, {})
            entry = None
    return found


def parse_vectorised(text: str, sources: Iterable[str]) -> list[str]:
    """Returns what g++ (`-fopt-info-vec-optimized-missed`) says about the sources' loops, in order. A loop that was
    vectorised in any form counts as vectorised. Otherwise the first real reason is kept."""
    wanted = set(sources)
    done: dict[tuple[str, int], str] = {}
    missed: dict[tuple[str, int], str] = {}
    for file, line, kind, said in _LOOP.findall(text):
        place = (file, int(line))
        if file not in wanted:
            continue
        if kind == "optimized" and "vectorized" in said:  # foreign text: g++'s
            done.setdefault(place, said)
        elif kind == "missed" and (place not in missed or missed[place] == _NO_REASON):
            missed |= {place: said} if _WHY.search(said) else {}  # foreign text: g++'s
    found = {place: said for place, said in missed.items() if place not in done} | done
    return [
        f"{file}:{line}: {'vectorised' if (file, line) in done else 'NOT vectorised'} ({found[file, line]})"
        for file, line in sorted(found)
    ]
