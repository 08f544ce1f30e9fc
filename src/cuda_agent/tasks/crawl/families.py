"""Lists the layers of all model families of the installed transformers from their text, without importing them."""

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cuda_agent.core.assets import tables
from cuda_agent.core.errors import DeviceError
from cuda_agent.tasks.records import LeftOut

_TABLES = tables(__file__)
_FIRST: list[str] = _TABLES["first"].split()
_MODELS = ("PreTrainedModel", "PretrainedModel", "GenericFor")
#: Functions that are operators themselves.
_FUNCTIONS = re.compile(r"^(apply_(\w+_)?(rotary|rope)\w*|rotate_\w+)$")
_KINDS = re.compile(_TABLES["kinds"])
_OF_FAMILY = rf"\b_*[A-Z][A-Za-z0-9]*?(?=({_TABLES['parts']})\b)"
_RECORDS = re.compile(r"(Output|Outputs|Config|Cache|Enum|Mixin|Kwargs|Dict)\w*$")


@dataclass(frozen=True)
class Listed:
    """A class or function of a family, to be tried."""

    module: str
    name: str

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"


def _folder() -> Path:
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        raise DeviceError("transformers isn't installed", "pip install cuda-agent[tasks], or crawl --library torch")
    return Path(spec.origin).parent / "models"


class _Bare(ast.NodeTransformer):
    """Removes what isn't computed: docstrings, annotations, decorators, error messages."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        self.generic_visit(node)
        node.decorator_list, node.returns = [], None
        return None if node.name in ("extra_repr", "__repr__") else node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Pass()


def _anonymous(node: ast.ClassDef | ast.FunctionDef, prefix: str) -> str:
    """Returns a hash of a class without its family's name, so that copies are recognised."""
    bare = _Bare().visit(node)
    if isinstance(bare, ast.ClassDef):
        bare.decorator_list = []
    text = re.sub(_OF_FAMILY, "", ast.unparse(bare))
    return hashlib.sha256(re.sub(rf"\b_*{re.escape(prefix)}", "", text).encode()).hexdigest()


def _prefix(names: list[str]) -> str:
    """Returns the prefix of most classes of a file: `Llama`."""
    words = [re.match(r"[A-Z][a-z0-9]*|[A-Z]+(?=[A-Z]|$)", name) for name in names]
    found = [word[0] for word in words if word]
    return max(set(found), key=found.count) if found else ""


def _file(path: Path, family: str, known: dict[str, str]) -> Iterator[Listed | LeftOut]:
    """Yields the definitions of a file. A copy of an earlier family's definition is left out."""
    source = path.read_text()
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    prefix = _prefix([node.name for node in nodes if isinstance(node, ast.ClassDef)])
    module = f"transformers.models.{family}.{path.stem}"
    models: set[str] = set()
    for node in nodes:
        item = Listed(module, node.name)
        if isinstance(node, ast.ClassDef):
            bases = " ".join(ast.unparse(base) for base in node.bases)
            if any(word in bases for word in _MODELS) or any(word in models for word in bases.split()):
                models.add(node.name)
                yield LeftOut(name=item.full_name, reason="a whole model, not a layer of one")
                continue
            if _RECORDS.search(bases) or not node.bases:
                continue
            if not _KINDS.search(node.name):
                reason = "no norm, MLP, attention, rotary embedding, gated or expert layer, nor a block of them"
                yield LeftOut(name=item.full_name, reason=reason)
                continue
        elif not _FUNCTIONS.match(node.name):
            continue
        key = _anonymous(node, prefix)
        if key in known:
            yield LeftOut(name=item.full_name, reason=f"the same text as {known[key]}")
        else:
            known[key] = item.full_name
            yield item


def listed() -> tuple[tuple[Listed, ...], tuple[LeftOut, ...]]:
    """Returns (to be tried, left out), the well-known families first. Raises DeviceError without transformers."""
    folder = _folder()
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("_"))
    ordered = [name for name in _FIRST if name in names] + [name for name in names if name not in _FIRST]
    known: dict[str, str] = {}
    found: list[Listed] = []
    left_out: list[LeftOut] = []
    for family in ordered:
        for path in sorted((folder / family).glob("modeling_*.py")):
            for item in _file(path, family, known):
                (found if isinstance(item, Listed) else left_out).append(item)  # type: ignore[arg-type]
    return tuple(found), tuple(left_out)
