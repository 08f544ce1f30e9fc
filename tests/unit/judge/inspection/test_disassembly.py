"""Disassemblers' output -> counts by class."""

from __future__ import annotations

import pytest

from cuda_agent.judge.inspection.disassembly import cpu_class, parse_objdump, parse_sass, sass_class

NVDISASM = """	.target	sm_90a
//--------------------- .text._Z5scalePf --------------------------
	.section	.text._Z5scalePf,"ax",@progbits
        .global         _Z5scalePf
.text._Z5scalePf:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R5, SR_CTAID.X ;
        /*0050*/                   IMAD.WIDE.U32 R2, R5, 0x200, R2 ;
        /*00b0*/               @P0 EXIT ;
        /*0130*/                   LDG.E.128 R8, desc[UR4][R2.64] ;
        /*0140*/              @!P1 LDG.E.U16.CONSTANT R8, desc[UR4][R2.64] ;
        /*0170*/                   FMUL.FTZ R11, R11, UR6 ;
        /*0180*/                   MUFU.EX2 R11, R11 ;
        /*0190*/             @!UP0 UIADD3 UR4, UR4, 0x1, URZ ;
        /*01b0*/                   STG.E.128 desc[UR4][R4.64], R8 ;
        /*01c0*/                   EXIT ;
.L_x_0:
        /*01d0*/                   BRA `(.L_x_0);
        /*01e0*/                   NOP;
.text._Z5tensorPf:
        /*0000*/                   HGMMA.64x64x8.F32.TF32 R24, gdesc[UR4], R24 ;
        /*0010*/                   HMMA.1688.F32.TF32 R4, R4, R8, R4 ;
        /*0020*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0030*/                   STL [R1], R0 ;
"""

CUOBJDUMP = """
	code for sm_90a
		Function : _Z3addPf
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDG.E R0, desc[UR4][R2.64] ;    /* 0x0000000a00ff017b82 */
                                                                   /* 0x000fe20000000800 */
        /*0010*/                   FADD R0, R0, 1 ;                /* 0x0000000a00ff017b82 */
"""

OBJDUMP = """
v.o:     file format elf64-x86-64

Disassembly of section .text:

0000000000000000 <f._omp_fn.0>:
   0:	push   %rbp
   9:	vmovups (%rax),%zmm0
   f:	vfmadd132ps (%rbx),%zmm1,%zmm0
  15:	vmulss %xmm1,%xmm0,%xmm0
  19:	vmovups %zmm0,(%rcx)
  20:	add    $0x40,%rax
  24:	jne    9 <f._omp_fn.0+0x9>
  2b:	nopl   0x0(%rax,%rax,1)
  30:	ret

0000000000000040 <g(float*)>:
  40:	call   45 <g(float*)+0x5>
"""


def test_sass_of_nvdisasm() -> None:
    found = parse_sass(NVDISASM)
    scale = found["_Z5scalePf"]
    assert dict(scale.counts) == {"other": 2, "integer": 2, "control": 3, "memory": 3, "float": 1, "special": 1}
    assert scale.access_bits == {128: 2, 16: 1}
    assert scale.mix()["memory"] == pytest.approx(3 / 12)
    assert dict(found["_Z5tensorPf"].counts) == {"tensor": 2, "shared": 1, "local": 1}


def test_sass_of_cuobjdump() -> None:
    assert dict(parse_sass(CUOBJDUMP)["_Z3addPf"].counts) == {"memory": 1, "float": 1}
    assert parse_sass("") == {}


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("LDGSTS", "memory"), ("UTMALDG", "memory"), ("RED", "memory"), ("ATOMS", "shared"), ("LDL", "local"),
        ("HFMA2", "float"), ("DFMA", "float"), ("WGMMA", "tensor"), ("IMMA", "tensor"), ("MUFU", "special"),
        ("F2FP", "convert"), ("ISETP", "integer"), ("LOP3", "integer"), ("VIADD", "integer"), ("LEA", "integer"),
        ("SHFL", "other"), ("MOV", "other"), ("BSSY", "control"), ("BAR", "control"), ("WARPGROUP", "control"),
        ("SOMETHINGNEW", "other"),
    ],
)  # fmt: skip
def test_classes_of_sass(opcode: str, kind: str) -> None:
    assert sass_class(opcode) == kind


def test_objdump() -> None:
    found = parse_objdump(OBJDUMP)
    assert list(found) == ["f._omp_fn.0", "g(float*)"]
    assert dict(found["f._omp_fn.0"].counts) == {"vector": 1, "scalar": 1, "memory": 2, "integer": 2, "control": 2}
    assert found["g(float*)"].mix() == {"control": 1.0}


@pytest.mark.parametrize(
    ("mnemonic", "operands", "kind"),
    [
        ("fmla", "v0.4s, v1.4s, v2.4s", "vector"), ("fmul", "s0, s1, s2", "scalar"), ("ldp", "q0, q1, [x0]", "memory"),
        ("b.ne", "10 <f>", "control"), ("vsqrtps", "%zmm0,%zmm1", "vector"), ("mov", "%rax,%rbx", "integer"),
        ("vpaddd", "%zmm0,%zmm1,%zmm2", "integer"),
    ],
)  # fmt: skip
def test_classes_of_the_cpu(mnemonic: str, operands: str, kind: str) -> None:
    assert cpu_class(mnemonic, operands) == kind
