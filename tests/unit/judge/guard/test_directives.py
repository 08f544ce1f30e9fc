"""Directives as they are written: forbidden headers, and texts that would lie about where a line comes from."""

from __future__ import annotations

import pytest

from cuda_agent.core.records import Candidate
from cuda_agent.judge.guard import check_texts
from cuda_agent.judge.guard.directives import macros

HONEST = {
    "usual": '#pragma once\n#include <torch/types.h>\n#include "../binding_registry.h"\n#include "part/../b.h"\n'
    '#define A(x) \\\n  #x\n#if 0\n#endif',
    "words in comments": "// # 1 \"x.h\" 1\n/*\n# 1 \"x.h\" 1\n#line 4\n*/ int step = 1;  // #1 of 2",
    "words in strings": 'const char* s = "# 1 \\"x.h\\" 1";',
    "an apostrophe in a skipped branch": "#if 0\n don't /* look */\n#endif\n#include <cmath>",
    "raw string": 'asm volatile(R"({ .reg .b32 t; })");',
}  # fmt: skip
CHEATING = {
    "computed include": ("#include HIDDEN", "computed_include"),
    "absolute include": ('#include "/etc/passwd"', "forbidden_header"),
    "out of the workspace": ('#include "../../workspace/kernels/hidden.h"', "forbidden_header"),
    "up from an include folder": ("#include <c10/../../../../proc/self/cwd/kernels/hidden.h>", "forbidden_header"),
    "another library by a detour": ('#include "../include/cub/cub.cuh"', "forbidden_header"),
    "another library by a dot": ("#include <./cub/cub.cuh>", "forbidden_header"),
    "precompiled header": ('#pragma GCC pch_preprocess "kernels/a.h"', "hidden_text"),
    "script header": ("#include <torch/script.h>", "forbidden_header"),
    "other library": ("# include <cub/cub.cuh>", "forbidden_header"),
    "split name": ("#inc\\\nlude <dl\\\nfcn.h>", "forbidden_header"),
    "comment before": ("/* a\n*/ # /* b */ include <dlfcn.h>", "forbidden_header"),
    "digraph": ("%: include <dlfcn.h>", "forbidden_header"),
    "import": ("#import <dlfcn.h>", "hidden_text"),
    "line": ('#line 1 "/usr/include/stdio.h"', "hidden_text"),
    "marker": ('# 1 "/usr/include/stdio.h" 1 3', "hidden_text"),
    "marker behind a space after a backslash": ('int a; \\ \n\n# 1 "/usr/include/stdio.h" 1', "hidden_text"),
    "marker behind what looks like a raw string": ('auto s = FOOR"(";\n# 1 "x.h" 1\n// )"', "hidden_text"),
    "marker behind a comment in a raw string": ('auto s = R"(/*)";\n# 1 "x.h" 1\n// */', "hidden_text"),
    "raw string that a continuation closes": ('auto s = R"(\n)\\\n" /* )";\n# 1 "x.h" 1\n// */', "hidden_text"),
    "marker behind a skipped apostrophe": ("#if 0\n ' /*\n#endif\n# 1 \"x.h\" 1\n// */", "hidden_text"),
}  # fmt: skip


def found(text: str) -> list[tuple[str, str]]:
    files = {"kernels/a.cu": text}
    return [(violation.rule, violation.detail) for violation in check_texts(Candidate(files=files))]


@pytest.mark.parametrize("name", HONEST)
def test_honest_directives_pass(name: str) -> None:
    assert found(HONEST[name]) == []


@pytest.mark.parametrize("name", CHEATING)
def test_cheating_directives_are_convicted(name: str) -> None:
    text, rule = CHEATING[name]
    assert rule in {one for one, _ in found(text)}


def test_line_numbers_survive_continuations_and_comments() -> None:
    assert found("#define A \\\n  1\n/*\n*/\n#include <dlfcn.h>\n")[0][1].startswith("kernels/a.cu:5:")


def test_macros_that_may_hold_code() -> None:
    text = "#define GUARD\n#define N 32\n#define M (1 << 3)\n#define F(x) x\n#define float evil(), float\n"
    assert [(macro.name, macro.line) for macro in macros(text, "kernels/a.h")] == [("M", 3), ("F", 4), ("float", 5)]
