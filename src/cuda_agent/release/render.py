"""Writes a promotion as JUnit's XML and as one HTML page."""

from pathlib import Path

from cuda_agent.core.assets import filled
from cuda_agent.release.lock import StackLock
from cuda_agent.release.records import Promotion

_JUNIT = Path(__file__).with_name("junit.xml.j2")


def junit(promotion: Promotion) -> str:
    """Returns XML with a test case for each gate."""
    gates = [(gate, _xml(gate.reason)) for gate in promotion.gates]
    return filled(_JUNIT, promotion=promotion, gates=gates, name=_xml(promotion.task), error=None)


def junit_error(name: str, error: str) -> str:
    """Returns the XML of a promotion that ended with an error."""
    return filled(_JUNIT, name=_xml(name), error=_xml(error))


def html(promotion: Promotion, lock: StackLock) -> str:
    """Returns one page without scripts, which needs no network."""
    tables = [gate.data.get("table", []) for gate in promotion.gates if gate.name == "speed"]
    template = Path(__file__).with_name("promotion.html.j2")
    return filled(template, promotion=promotion, speed=tables[0] if tables else [], lock=lock.to_yaml())


def _xml(text: str) -> str:
    """Replaces characters that XML 1.0 can't have."""
    return "".join(c if c in "\t\n" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" else "?" for c in text)
