"""The forest plot as a picture."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from evenprune import pictures, report
from tests import audit_documents

pytest.importorskip("altair", reason="pictures need the extra `report`")
pytest.importorskip("vl_convert", reason="pictures need the extra `report`")


def words(svg: str) -> list[str]:
    return list(ElementTree.fromstring(svg).itertext())


def test_svg_names_every_group_and_the_verdict(tmp_path):
    document = audit_documents.document(12)
    report.write(document, tmp_path / "audit.svg")
    said = words((tmp_path / "audit.svg").read_text(encoding="utf-8"))
    for group in document["groups"]:
        assert any(text.endswith(f". {group['group']}") for text in said)
    assert any(text.startswith("Fail: pruning cost") for text in said)


def test_hostile_names_stay_text_in_svg():
    svg = pictures.to_svg(audit_documents.document(named=list(audit_documents.HOSTILE_NAMES)))
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
    assert tags.isdisjoint({"script", "img", "image", "foreignObject"})
    assert any("<script>" in text for text in words(svg))


def test_png_is_a_png_and_tells_of_the_groups_it_leaves_out():
    document = audit_documents.document(60, verdict="inconclusive", measure="loss")
    assert pictures.to_png(document).startswith(b"\x89PNG\r\n\x1a\n")
    assert any(
        "The 40 worst groups; 20 more are not drawn." in text for text in words(pictures.to_svg(document))
    )


def test_without_the_extra_the_error_says_what_to_install(tmp_path):
    script = (
        "import sys; sys.modules['altair'] = None\n"
        "from evenprune import report, pictures\n"
        "try: pictures.to_svg({})\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert "pip install 'evenprune[report]'" in said.stdout


def test_a_report_imports_neither_altair_nor_torch():
    heavy = "('altair', 'torch', 'vl_convert')"
    script = f"import sys, evenprune.report; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.stdout.strip() == "[]"
