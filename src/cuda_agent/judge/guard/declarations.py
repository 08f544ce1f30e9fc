"""The rule against variables that outlive a call and can hold tensors: with them a binding could keep results.

The rule reads the syntax tree that tree-sitter's CUDA grammar gives of preprocessed text. Where the grammar doesn't
understand a text, a plain search for `static … Tensor …` stands in. A binding may keep handles, plans and sizes;
tensors belong to `ModelNew`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from cuda_agent.judge.guard.lexer import without_literals

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

RULE = "kept_tensor"
#: the most violations that are reported of one text.
MOST = 100
_HOLDS = re.compile(
    r"\b(?:Tensor|TensorBase|TensorImpl|TensorList|Variable|Storage|StorageImpl|DataPtr|IValue|intrusive_ptr|PyObject"
    r"|weak_intrusive_ptr|(?:py|pybind11)\s*::\s*(?:object|dict|list|tuple|set|handle|function|capsule)|std\s*::\s*any)\b"
    r"|\b(?:at|torch)\s*::\s*(?:empty|zeros)\w*\s*\("
)
_WORD = re.compile(r"\w+")
_SCOPES = (
    "translation_unit", "namespace_definition", "declaration_list", "linkage_specification", "template_declaration",
)  # fmt: skip
#: a declaration up to its end or initialiser. Parentheses are excluded, since a prototype has them.
_STATEMENT = re.compile(r"[^;{}()=]+")
_STATIC = re.compile(r"\b(?:static|thread_local)\b")

Add = Callable[[str, int, str], None]


def check_declarations(text: str, add: Add) -> None:
    """Calls `add` with (rule, offset, what) for each variable that keeps tensors between calls."""
    code = without_literals(text)
    if _HOLDS.search(code) is None:
        return
    data = code.encode()
    root = _parser().parse(data).root_node
    nodes = list(_walk(root))
    holders = _own_holders(nodes)
    parameters = {_text(name) for node in nodes if node.type == "type_parameter_declaration" for name in node.children}
    kept = (node for node in nodes if _keeps(node, holders, parameters))
    found = {_offset(data, code, node) for node in islice(kept, MOST)}
    if root.has_error:
        found |= set(islice(_plain(code, holders), MOST))
    for offset in sorted(found):
        line = code[offset : offset + 200].partition(";")[0]
        add(RULE, offset, f"{line[:80]}: a tensor kept between calls; keep it in ModelNew")


def _plain(code: str, holders: Container[str]) -> Iterator[int]:
    """Yields the offsets of static variables that may hold tensors, by a plain search."""
    for match in _STATEMENT.finditer(code):
        static = _STATIC.search(match.group()) if code[match.end() : match.end() + 1] in (";", "=", "{") else None
        if static and _holds(match.group()[static.start() :], holders):
            yield match.start() + static.start()


def _keeps(node: Node, holders: Container[str], parameters: set[str]) -> bool:
    """Whether a declaration keeps tensors. `parameters` names template parameters, which may stand for tensors."""
    if node.type == "lambda_capture_initializer":
        return _holds(_text(node), holders)
    if not _lives_on(node) or "constexpr" in {_text(child) for child in node.children}:
        return False
    kind = node.child_by_field_name("type")
    used = set(_WORD.findall(_text(kind))) if kind is not None else set()
    return bool(used & parameters) or _holds(_text(node), holders)


def _holds(text: str, holders: Container[str]) -> bool:
    return _HOLDS.search(text) is not None or any(word in holders for word in _WORD.findall(text))


def _own_holders(nodes: list[Node]) -> set[str]:
    """Returns the text's own classes and aliases that hold tensors, directly or through one another."""
    made = [(name, _contents(node)) for node in nodes for name in _defined_types(node)]
    known = {name for name, text in made if _HOLDS.search(text)}
    users: dict[str, set[str]] = defaultdict(set)
    for name, text in made:
        for word in _WORD.findall(text):
            users[word].add(name)
    waiting = list(known)
    while waiting:
        more = users[waiting.pop()] - known
        known |= more
        waiting += more
    return known


def _defined_types(node: Node) -> list[str]:
    if node.type in ("struct_specifier", "class_specifier", "union_specifier", "alias_declaration"):
        name = node.child_by_field_name("name")
        return [_text(name)] if name is not None and name.type == "type_identifier" else []
    if node.type == "type_definition":
        return [_text(child) for child in node.children_by_field_name("declarator") if child.type == "type_identifier"]
    return []


def _contents(node: Node) -> str:
    """Returns the text of a class's bases and fields, or of the type behind an alias."""
    body = node.child_by_field_name("body")
    if body is None:
        kind = node.child_by_field_name("type")
        return "" if kind is None else _text(kind)
    parts = [child for child in body.named_children if child.type == "field_declaration" and not _is_prototype(child)]
    bases = [child for child in node.named_children if child.type == "base_class_clause"]
    return "\n".join(_text(part) for part in (*bases, *parts))


def _lives_on(node: Node) -> bool:
    """Whether a variable lives as long as the library: it is static, thread-local, or outside of functions."""
    if node.type not in ("declaration", "field_declaration"):
        return False
    stored = {child.text for child in node.children if child.type == "storage_class_specifier"}
    static = bool(stored & {b"static", b"thread_local"})
    if node.type == "field_declaration":
        return static and not _is_prototype(node)
    return static if _in_function(node) else not _is_prototype(node)


def _is_prototype(node: Node) -> bool:
    return all(_leads_to_function(child) for child in node.children_by_field_name("declarator"))


def _leads_to_function(node: Node | None) -> bool:
    while node is not None:
        if node.type == "function_declarator":
            inner = node.child_by_field_name("declarator")
            return inner is None or inner.type != "parenthesized_declarator"
        if node.type not in ("pointer_declarator", "reference_declarator"):
            return False
        node = node.child_by_field_name("declarator") or (node.named_children[-1] if node.named_children else None)
    return False


def _in_function(node: Node) -> bool:
    parent = node.parent
    while parent is not None and parent.type in _SCOPES:
        parent = parent.parent
    return parent is not None


def _walk(root: Node) -> Iterator[Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def _offset(data: bytes, code: str, node: Node) -> int:
    """Converts tree-sitter's offset, which counts bytes, to one that counts characters."""
    return node.start_byte if len(data) == len(code) else len(data[: node.start_byte].decode(errors="replace"))


@lru_cache(maxsize=1)
def _parser() -> Parser:
    import tree_sitter_cuda
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_cuda.language()))
