"""The filter is valid BPF: every jump lands inside, the last word is a return."""

from __future__ import annotations

import struct

import pytest

from cuda_agent.workspace.seccomp import build_filter


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("network", [True, False])
def test_jumps_stay_inside(machine: str, network: bool) -> None:
    code = build_filter(machine, network=network)
    assert code is not None
    instructions = list(struct.iter_unpack("=HBBI", code))
    for index, (opcode, if_true, if_false, _) in enumerate(instructions):
        if opcode & 7 == 5:
            assert max(if_true, if_false) + index + 1 < len(instructions)
    assert instructions[-1][0] == 6


def test_unknown_architectures_have_none() -> None:
    assert build_filter("riscv64", network=False) is None
