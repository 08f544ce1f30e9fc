"""Digests name content: stable, independent of order, without collisions between lists of parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.core.hashing import digest_files, digest_text
from cuda_agent.core.records import Candidate


def test_digests_are_stable_across_versions() -> None:
    assert digest_text("a", "b") == "cf6ab613e3942391f88ed698557e1680f160bd10e88c6b668c50360c10930e2b"
    assert Candidate(files={"b": "2", "a": "1"}).digest == digest_text("a", "1", "b", "2")


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_order_of_files_does_not_count(files: dict[str, str]) -> None:
    assert digest_files(files) == digest_files(dict(reversed(files.items())))


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_different_parts_have_different_digests(first: list[str], second: list[str]) -> None:
    assert (digest_text(*first) == digest_text(*second)) == (first == second)
