"""Whose line is it: the preprocessor's output, divided by its line markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.judge.guard import MOST_TEXT, Compiled
from guard_harness import preprocess

HEADER = "#pragma once\n#include <stddef.h>\n#define TWICE(x) x##x\ninline int of_header();\n"
SOURCE = """#include <limits.h>
#include "part.h"

int TWICE(a);
const char* s = R"(
# 1 "/usr/include/x.h" 1 3
)"; int b;
"""


def test_own_lines_with_their_places(tmp_path: Path) -> None:
    seen = preprocess({"kernels/a.cpp": SOURCE, "kernels/part.h": HEADER}, "kernels/a.cpp", tmp_path)
    text = seen.text
    assert "size_t" not in text
    assert seen.place(text.index("int aa;")) == "kernels/a.cpp:4"
    assert seen.place(text.index("of_header")) == "kernels/part.h:4"
    assert seen.place(text.index("int b;")) == "kernels/a.cpp:7"


def test_headers_come_with_the_number_of_own_pieces_before(tmp_path: Path) -> None:
    seen = preprocess({"kernels/a.cpp": SOURCE, "kernels/part.h": HEADER}, "kernels/a.cpp", tmp_path)
    order = {Path(path).name: count for count, path in seen.headers}
    assert order["stdc-predef.h"] == order["limits.h"] == 0
    assert order["stddef.h"] > 0


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    seen = preprocess({"kernels/a.cpp": SOURCE, "kernels/part.h": HEADER}, "kernels/a.cpp", tmp_path)
    Compiled((seen, seen), ("k",)).save(tmp_path / "kept.json")
    assert Compiled.load(tmp_path / "kept.json") == Compiled((seen, seen), ("k",))


def test_a_fixed_file_of_the_workspace_is_not_the_candidates(tmp_path: Path) -> None:
    files = {"kernels/a.cpp": '#include "../binding_registry.h"\nint a;\n', "binding_registry.h": "int fixed;\n"}
    assert "fixed" not in preprocess(files, "kernels/a.cpp", tmp_path).text


@pytest.mark.parametrize("path", ["../{here}/kernels/b.h", "/proc/self/cwd/kernels/b.h"])
def test_a_detour_to_an_own_header_does_not_make_it_foreign(path: str, tmp_path: Path) -> None:
    detour = path.format(here=tmp_path.name)
    include = detour if detour.startswith("/") else f"../{detour}"
    files = {"kernels/a.cpp": f'#include "{include}"\n', "kernels/b.h": "int mine;\n"}
    assert "int mine" in preprocess(files, "kernels/a.cpp", tmp_path).text


def test_too_much_text_is_not_read(tmp_path: Path) -> None:
    output = tmp_path / "source.ii"
    output.write_text('# 1 "kernels/a.cpp"\n' + "int a;\n" * (MOST_TEXT // 7 + 1))
    assert Compiled.read([output], [], []) is None
