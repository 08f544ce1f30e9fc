"""Writes a promotion as JUnit's XML and as one HTML page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from cuda_agent.core.templates import filled
from cuda_agent.release.lock import StackLock
from cuda_agent.release.records import Promotion


def junit(promotion: Promotion) -> str:
    """Returns XML with a test case for each gate."""
    counts = [gate.status for gate in promotion.gates]
    suite = ET.Element(
        "testsuite",
        name=f"promote {_xml(promotion.task)}",
        tests=str(len(counts)),
        failures=str(counts.count("failed")),
        errors="0",
        skipped=str(len(counts) - counts.count("failed") - counts.count("passed")),
        time=f"{promotion.duration_s:.3f}",
        timestamp=promotion.started,
    )
    for gate in promotion.gates:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"promote.{_xml(promotion.task)}",
            name=gate.name,
            time=f"{gate.duration_s:.3f}",
        )
        reason = _xml(gate.reason)
        if gate.status == "failed":
            ET.SubElement(case, "failure", message=reason, type=gate.name).text = reason
        elif gate.status != "passed":
            ET.SubElement(case, "skipped", message=f"{gate.status.replace('_', ' ')}: {reason}")
        else:
            ET.SubElement(case, "system-out").text = reason
    return _document(suite)


def junit_error(name: str, error: str) -> str:
    """Returns the XML of a promotion that ended with an error."""
    suite = ET.Element("testsuite", name=f"promote {_xml(name)}", tests="1", failures="0", errors="1", skipped="0")
    case = ET.SubElement(suite, "testcase", classname="promote", name="promote")
    ET.SubElement(case, "error", message=_xml(error))
    return _document(suite)


def html(promotion: Promotion, lock: StackLock) -> str:
    """Returns one page without scripts, which needs no network."""
    tables = [gate.data.get("table", []) for gate in promotion.gates if gate.name == "speed"]
    template = Path(__file__).with_name("promotion.html.j2")
    return filled(template, promotion=promotion, speed=tables[0] if tables else [], lock=lock.to_yaml())


def _document(suite: ET.Element) -> str:
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """Replaces characters that XML 1.0 can't have."""
    return "".join(c if c in "\t\n" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" else "?" for c in text)
