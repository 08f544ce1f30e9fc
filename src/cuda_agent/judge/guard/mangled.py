"""Qualified names in mangled symbols (the Itanium C++ ABI), without the rest of what a demangler prints.

A demangler prints a name of a hundred characters with exponentially many, and what it prints begins with a return type
here and there. The beginning of a mangled name says all that the lists of `symbols` need.
"""

import re

#: abbreviations.
_SHORT = {
    "St": "std", "Sa": "std::allocator", "Sb": "std::basic_string", "Ss": "std::string", "Si": "std::istream",
    "So": "std::ostream", "Sd": "std::iostream", "nw": "operator new", "na": "operator new[]", "dl": "operator delete",
    "da": "operator delete[]",
}  # fmt: skip
#: before the name: nothing, or what makes it a vtable, a typeinfo, a guard, a wrapper of a thread-local variable.
_BEGIN = re.compile(r"_Z(?P<special>T[VTISHW]|G[VR])?(?P<nested>N[rVKRO]*)?")
#: the vector form of a function of the C library.
_VECTOR = re.compile(r"_ZGV[a-zA-Z][NM]\d+\w*_\w+")
_LENGTH = re.compile(r"(?P<mark>[BL]?)(?P<length>[1-9]\d{0,5})")
_STRUCTOR = re.compile(r"[CD]\d")
_OPERATOR = re.compile(r"[a-z][a-zA-Z]")
_MOST_PARTS = 32


def qualified(symbol: str) -> str:
    """Returns the qualified name in a symbol, up to its first template argument: `std::vector<` for
    `std::vector<int>::at`, `typeinfo` for that of a type without a name. Another symbol stays as it is."""
    begin = _BEGIN.match(symbol)
    if begin is None or _VECTOR.fullmatch(symbol):
        return symbol
    at, parts = begin.end(), list[str]()
    while len(parts) < _MOST_PARTS and (step := _component(symbol, at)) is not None:
        name, at = step
        parts += [name] if name else []
        if symbol[at : at + 1] == "I":
            return "::".join(parts) + "<"
        # Outside of a nested name one component follows `std::`.
        if begin["nested"] is None and name not in ("", "std"):
            break
    if parts:
        return "::".join(parts)
    return "typeinfo" if begin["special"] in ("TI", "TS") else symbol


def _component(symbol: str, at: int) -> tuple[str, int] | None:
    """Returns one component and where the next one begins; "" for a tag, None at the end."""
    length = _LENGTH.match(symbol, at)
    if length is not None:
        end = length.end() + int(length["length"])
        return ("" if length["mark"] == "B" else symbol[length.end() : end]), end
    two = symbol[at : at + 2]
    if two in _SHORT:
        return _SHORT[two], at + 2
    if _STRUCTOR.fullmatch(two):
        return two[0], at + 2
    return ("operator", at + 2) if _OPERATOR.fullmatch(two) else None
