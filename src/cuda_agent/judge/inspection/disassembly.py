"""Counts instructions by class in the disassemblers' text: SASS (nvdisasm, `cuobjdump -sass`), and x86-64 or AArch64
(`objdump -d --no-show-raw-insn`)."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.core.assets import tables, word_lists

#: the first two are only the CPU's.
CLASSES = (
    "vector", "scalar", "memory", "shared", "local", "float", "tensor", "special", "integer", "convert", "control",
    "other",
)  # fmt: skip

_SASS_FUNCTION = re.compile(r"^\s*(?:Function : (\S+)|\.text\.([^:\s]+):)\s*$")
_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_.]+)?)")
_CPU_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_CPU = re.compile(r"^\s+[0-9a-f]+:\s+(?:(?:lock|rep|repz|repnz|notrack|bnd) )*([a-z][a-z0-9.]*)(?:\s+(.*))?$")


@dataclass
class Function:
    """Instruction counts by class. `access_bits` counts the accesses to global memory by their width."""

    counts: Counter[str] = field(default_factory=Counter)
    access_bits: Counter[int] = field(default_factory=Counter)

    @property
    def instructions(self) -> int:
        return self.counts.total()

    def mix(self) -> dict[str, float]:
        """Returns the share of each class that occurs, in the order of CLASSES."""
        return {name: self.counts[name] / self.instructions for name in CLASSES if self.counts[name]}

    def counted(self) -> dict[str, Any]:
        """Returns the fields of `KernelCode` that the counts give."""
        widths = dict(sorted(self.access_bits.items()))
        return {"instructions": self.instructions, "mix": self.mix(), "access_bits": widths}


def parse_sass(text: str) -> dict[str, Function]:
    """Maps mangled names to functions. Padding (`NOP`, the loop after the end) is left out."""
    found: dict[str, Function] = {}
    current: Function | None = None
    for line in text.splitlines():
        if match := _SASS_FUNCTION.match(line):
            current = found.setdefault(match.group(1) or match.group(2), Function())
        elif current is not None and (match := _SASS.match(line)):
            opcode = match.group(1)
            base = opcode.partition(".")[0]
            if base == "NOP":
                continue
            kind = sass_class(base)
            current.counts[kind] += 1
            if kind == "memory" and base in ("LDG", "STG", "LD", "ST", "LDGSTS"):
                current.access_bits[_width(opcode)] += 1
    return {name: function for name, function in found.items() if function.instructions}


def sass_class(base: str) -> str:
    """Returns the class of an opcode without its modifiers."""
    known = (name for name, opcodes in word_lists(__file__).items() if base in opcodes)
    is_integer = base.removeprefix("U").startswith(tuple(tables(__file__)["beginnings"]))
    return next(known, "integer" if is_integer else "other")


def _width(opcode: str) -> int:
    parts = opcode.split(".")
    for part in parts:
        if part in ("64", "128", "256"):
            return int(part)
        if part in ("U8", "S8", "U16", "S16"):
            return int(part[1:])
    return 32


def parse_objdump(text: str) -> dict[str, Function]:
    """Maps names to functions of the CPU. `vector` and `scalar` floating point are distinguished."""
    found: dict[str, Function] = {}
    current: Function | None = None
    for line in text.splitlines():
        if match := _CPU_FUNCTION.match(line.strip()):
            current = found.setdefault(match.group(1), Function())
        elif current is not None and (match := _CPU.match(line)):
            kind = cpu_class(match.group(1), match.group(2) or "")
            if kind is not None:
                current.counts[kind] += 1
    return {name: function for name, function in found.items() if function.instructions}


_X86_FLOAT = re.compile(
    r"v?(?:add|sub|mul|div|sqrt|min|max|cmp\w*|ucomi|comi|f(?:n?m)(?:add|sub)\w*|rcp\w*|rsqrt\w*|and|andn|or|xor|round|"
    r"rndscale|scalef|getexp|getmant|fixupimm|reduce|dp|hadd|range)(ps|pd|ss|sd|ph|sh)$"
)
_X86_FMA = re.compile(r"vf(?:n)?m(?:add|sub)\w*?(ps|pd|ss|sd|ph|sh)$")
_X86_CONTROL = re.compile(r"j[a-z]+$|call|ret|leave|enter|loop")
_ARM_CONTROL = re.compile(r"b(?:\.\w+)?$|bl|blr|br|ret|cbn?z|tbn?z")


def cpu_class(mnemonic: str, operands: str) -> str | None:
    """Returns `vector` or `scalar` for floating point, `memory` for moves, `control` or `integer`; None for padding. An
    instruction that computes and reads memory counts as computing."""
    if mnemonic.startswith("nop") or mnemonic in ("data16", "xchg", "cs", "int3", "endbr64"):
        return None
    match = _X86_FMA.match(mnemonic) or _X86_FLOAT.match(mnemonic)
    if match:
        return "vector" if match.group(1) in ("ps", "pd", "ph") else "scalar"
    if re.match(r"f(?:add|sub|mul|div|madd|msub|nm\w+|mla|mls|sqrt|max\w*|min\w*|neg|abs)$", mnemonic):
        return "vector" if re.search(r"\bv\d+\.|\bz\d+\.", operands) else "scalar"
    if _X86_CONTROL.match(mnemonic) or _ARM_CONTROL.fullmatch(mnemonic):
        return "control"
    if "(" in operands and mnemonic.startswith(("mov", "vmov", "vbroadcast", "vgather", "vscatter", "vp", "vextract")):
        return "memory"
    if re.match(r"(?:ld|st)[rpnu1-4]\w*$", mnemonic):
        return "memory"
    return "integer"
