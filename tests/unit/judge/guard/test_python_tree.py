"""The syntax tree of `model_new.py`: each cheat has an honest twin that must pass."""

from __future__ import annotations

import importlib
import types

import pytest

from cuda_agent.core.assets import word_lists
from cuda_agent.core.records import Candidate
from cuda_agent.judge.guard import check_texts, python_tree

HEAD = "import math\nimport torch\nimport torch.nn as nn\nimport cuda_extension\n"


def module(forward: str, *, init: str = "pass", extra: str = "", head: str = HEAD) -> str:
    def body(text: str) -> str:
        return "\n".join(" " * 8 + line for line in text.splitlines())

    return (
        f"{head}\nclass ModelNew(nn.Module):\n"
        f"    def __init__(self, n=4):\n        super().__init__()\n{body(init)}\n\n"
        f"    def forward(self, x, y=None):\n{body(forward)}\n{extra}"
    )


def rules(text: str) -> set[str]:
    return {violation.rule for violation in check_texts(Candidate(files={"model_new.py": text}))}


HONEST_MODULES = {
    "plain": module("return cuda_extension.op(x, self.n)", init="self.n = n"),
    "weights in containers": module(
        "return cuda_extension.linear(x.contiguous(), self.linear.weight, self.linear.bias, CONFIG['linear'])",
        init="self.linear = nn.Linear(n, n)\nnn.init.normal_(self.linear.weight, std=0.1)",
        extra="\n\nCONFIG = {'linear': 0}\n",
    ),
    "shapes": module(
        "b, n = x.shape\nm = x.size(0) * x.shape[1] // 2\nout = torch.empty((b, n), device=x.device, dtype=x.dtype)\n"
        "if x.dtype == torch.float32 and m > 3:\n    cuda_extension.op(out, x, math.sqrt(m), -m)\n"
        "return out.view(b, -1)"
    ),
    "buffers made at construction": module(
        "return cuda_extension.op(x, self.mask)",
        init="self.register_buffer('mask', torch.tril(torch.ones(n, n)) * 2 - 1, persistent=False)",
    ),
    "derived weights": module(
        "return cuda_extension.op(x, self.packed)",
        init="self.w = nn.Parameter(torch.empty(n, n))",
        extra="""
    def load_state_dict(self, state_dict, strict=True, assign=False):
        result = super().load_state_dict(state_dict, strict, assign)
        self.packed = cuda_extension.pack(self.w.t().contiguous().to(torch.bfloat16))
        return result
""",
    ),
    "own blocks": module(
        "for block in self.blocks:\n    x = block(x)\nreturn self.head(x)",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])\nself.head = Block()",
        extra="\n\nclass Block(nn.Module):\n    def forward(self, x):\n        return cuda_extension.op(x)\n",
    ),
    "numbered children": module(
        "return cuda_extension.op(x, self.seq._modules['0'].weight)",
        init="self.add_module('seq', nn.Module())\nself.seq.add_module('0', nn.Module())\n"
        "self.seq._modules['0'].register_parameter('weight', nn.Parameter(torch.empty((3,), dtype=torch.float32)))",
    ),
    "modules with a method's name": module(
        "return cuda_extension.op(x, self.norm.weight, self.block.sum.weight, self.mean[0].bias)",
        init="self.norm = nn.LayerNorm(4)",
    ),
    "number with annotation": HEAD
    + "\nclass ModelNew(nn.Module):\n    def forward(self, x, k: int):\n        return cuda_extension.op(x, k + 1)\n",
    "names for annotations": module(
        "return cuda_extension.op(x, typing.Optional)",
        head=HEAD + "import typing\nimport collections.abc as abc\nfrom typing import Any, Optional, Sequence\n"
        "from collections.abc import Callable\nfrom dataclasses import dataclass, field\n",
        init="self.of: Optional[int] = n\nself.more: abc.Sequence[int] = [n]",
    ),
    "initialised in three ways": module(
        "return cuda_extension.op(x, self.w)",
        head=HEAD + "from torch.nn import init\n",
        init="self.w = nn.Parameter(torch.empty(n, n))\nnn.init.kaiming_uniform_(self.w, a=math.sqrt(5))\n"
        "init.xavier_uniform_(self.w)\ntorch.nn.init.zeros_(self.w)",
    ),
    "attributes of its own": module(
        "return cuda_extension.op(x)",
        init="self.k: int = n\nself.table = {}\nself.table['a'] = 1\nself.block = Block()\nself.block.k = n",
        extra="\n\nclass Block(nn.Module):\n    pass\n",
    ),
    "several results": module("results = cuda_extension.op(x)\nreturn {'a': results[0], 'b': (results[1],)}"),
}

#: a statement at the module's top that leads to another module, or changes one.
ESCAPES = {
    "a module of a module": "from typing import sys",
    "the same by a dot": "import typing\nclock = typing.sys.modules",
    "of dataclasses": "import dataclasses\nrun = dataclasses.builtins",
    "of collections": "import collections.abc\nfound = collections._sys",
    "of its part": "import collections.abc\nfound = collections.abc.sys",
    "under another name": "import collections.abc as abc\nfound = abc.sys",
    "a function that runs text": "from typing import get_type_hints",
    "a class that does": "from typing import ForwardRef",
    "of nn.init": "found = nn.init.warnings.sys",
    "of init": "from torch.nn import init\nfound = init.warnings.sys",
    "nn.init itself": "found = nn.init",
    "torch itself": "alias = torch\nalias.cuda.Event.elapsed_time = abs",
    "in a list": "alias = [torch][0].cuda",
    "as a default": "def f(t=torch):\n    return t.cuda",
    "through a class": "found = nn.Linear.forward",
    "a frame": "frame = (0 for _ in ()).gi_frame",
    "a frame's names": "def f(frame):\n    return frame.f_back.f_globals",
    "a pattern": "match abs:\n    case Callable(__self__=found):\n        pass",
    "patched with a type": "torch.empty: int = 3",
    "patched by a loop": "for torch.empty in (1, 2):\n    pass",
    "patched by with": "with torch.no_grad() as cuda_extension.op:\n    pass",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_modules_lead_nowhere(name: str) -> None:
    assert rules(HEAD) == set()
    found = rules(f"{HEAD}{ESCAPES[name]}\n")
    assert found and found <= {"forbidden_import", "forbidden_name", "torch_compute", "patched_module", "hidden_call"}


def test_no_allowed_name_is_a_module() -> None:
    """Nor leads to one by a plain attribute, as modules of the standard library do."""
    lists = word_lists(python_tree.__file__)
    for name, allowed in ((key.removeprefix("names of "), lists[key]) for key in lists if key.startswith("names of ")):
        module = importlib.import_module(name)
        for item in allowed - {"abc"}:
            value = getattr(module, item)
            assert not isinstance(value, types.ModuleType), f"{name}.{item}"
            if not isinstance(value, types.FunctionType):
                inside = (getattr(value, part, None) for part in dir(value) if not part.startswith("__"))
                assert not any(isinstance(part, types.ModuleType) for part in inside), f"{name}.{item}"


CHEATING_MODULES = {
    "functional": (module("return F.relu(x)", head=HEAD + "import torch.nn.functional as F\n"), "forbidden_import"),
    "torch function": (module("return torch.matmul(x, y)"), "torch_compute"),
    "captured function": (module("f = torch.relu\nreturn f(x)"), "torch_compute"),
    "captured at construction": (module("return self.f(x)", init="self.f = torch.relu"), "torch_compute"),
    "functional through nn": (module("return nn.functional.relu(x)"), "torch_compute"),
    "operator": (module("return cuda_extension.op(x) + y"), "torch_compute"),
    "operator on a view": (module("return x.view(-1) * 2"), "torch_compute"),
    "matmul of weights": (module("return cuda_extension.op(self.w @ self.w)"), "torch_compute"),
    "in place": (module("x += 1\nreturn cuda_extension.op(x)"), "torch_compute"),
    "comparison": (module("return cuda_extension.op(x > 0)"), "torch_compute"),
    "method": (module("return cuda_extension.op(x).sum()"), "torch_compute"),
    "captured method": (module("f = x.matmul\nreturn f(y)"), "torch_compute"),
    "captured method of a weight": (module("f = self.w.matmul\nreturn f(x)"), "torch_compute"),
    "conversion": (module("return cuda_extension.op(x.half()).float()"), "torch_compute"),
    "call of a module": (module("return self.linear(x)", init="self.linear = nn.Linear(4, 4)"), "torch_compute"),
    "forward of a module": (
        module("return self.linear.forward(x)", init="self.linear = nn.Linear(4, 4)"),
        "torch_compute",
    ),
    "sequential": (
        module("for m in self.net:\n    x = m(x)\nreturn x", init="self.net = nn.ModuleList([nn.ReLU()])"),
        "hidden_call",
    ),
    "builtin sum": (module("return sum(x)"), "torch_compute"),
    "write": (module("x[0] = 1\nreturn cuda_extension.op(x)"), "torch_compute"),
    "getattr": (module("return getattr(torch, 'rel' + 'u')(x)"), "forbidden_name"),
    "eval": (module("return eval('torch.relu')(x)"), "forbidden_name"),
    "dunder": (module("return x.__matmul__(y)"), "forbidden_name"),
    "frames": (HEAD + "import inspect\n", "forbidden_import"),
    "garbage collector": (HEAD + "import gc\n", "forbidden_import"),
    "reference": (HEAD + "from model import Model\n", "forbidden_import"),
    "files": (module("open('/tmp/x')\nreturn cuda_extension.op(x)"), "forbidden_name"),
    "patched module": (module("torch.equal = None\nreturn cuda_extension.op(x)"), "patched_module"),
    "generators": (module("torch.manual_seed(0)\nreturn cuda_extension.op(x)"), "torch_compute"),
    "global flags": (module("torch.backends.cuda.matmul.allow_tf32 = True\nreturn x"), "patched_module"),
    "tensor subclass": (HEAD + "\nclass Lazy(torch.Tensor):\n    pass\n", "forbidden_base"),
    "dispatch": (
        HEAD + "\nclass ModelNew(nn.Module):\n    def __torch_function__(self):\n        pass\n",
        "forbidden_method",
    ),
    "compiled": (HEAD + "\n@torch.compile\ndef f(x):\n    return cuda_extension.op(x)\n", "forbidden_decorator"),
    "operators by name": (module("return torch.ops.aten.relu(x)"), "torch_compute"),
    "side stream": (module("s = torch.cuda.Stream()\nreturn cuda_extension.op(x)"), "torch_compute"),
    "arithmetic while loading": (
        module(
            "return x",
            extra="\n    def load_state_dict(self, s):\n        self.p = torch.matmul(self.w, self.w)\n",
        ),
        "torch_compute",
    ),
}


@pytest.mark.parametrize("name", HONEST_MODULES)
def test_honest_modules_pass(name: str) -> None:
    assert check_texts(Candidate(files={"model_new.py": HONEST_MODULES[name]})) == ()


@pytest.mark.parametrize("name", CHEATING_MODULES)
def test_cheating_modules_are_convicted(name: str) -> None:
    text, rule = CHEATING_MODULES[name]
    assert rule in rules(text)


@pytest.mark.parametrize("text", ["+".join(["0"] * 100_000), "(" * 150 + "0" + ")" * 150, "-" * 5_000 + "1"])
def test_what_nests_too_deeply_is_refused(text: str) -> None:
    found = check_texts(Candidate(files={"model_new.py": module("return x", extra=f"\nDEEP = {text}\n")}))
    assert {violation.rule for violation in found} <= {"too_deep"}, found
    assert found or len(text) < 1_000


def test_detail_names_file_and_line() -> None:
    text = module("return torch.relu(x)")
    (violation,) = check_texts(Candidate(files={"model_new.py": text}))
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "relu" in row)
    assert violation.detail.startswith(f"model_new.py:{line}: torch.relu")


def test_a_syntax_error_is_left_to_the_loader() -> None:
    assert check_texts(Candidate(files={"model_new.py": "def ("})) == ()
