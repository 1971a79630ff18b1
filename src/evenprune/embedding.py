"""A page that asks nobody for anything: template, shared parts, content policy and data in one file."""

import base64
import functools
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from evenprune.wording import shorten, visible

PACKAGE: Traversable = resources.files("evenprune")
LONGEST_NAME = 400  # keeps a page of 1,000 groups small even when their names are not


def filled(template: str, fields: Mapping[str, str], *, folder: Traversable = PACKAGE) -> str:
    """The page of a template file in a folder; the data must come as text that is safe at its place."""
    page = assembled(template, folder)
    values = {**fields, "POLICY": content_policy(page)}
    # One pass, so that a name that looks like a field is not filled in turn.
    return re.sub(r"@@([A-Z]+)@@", lambda match: values[match[1]], page)


def assembled(template: str, folder: Traversable = PACKAGE) -> str:
    """The template file, with the package's file itself wherever it names one: @@page_base.css@@."""
    text = folder.joinpath(template).read_text(encoding="utf-8")
    return re.sub(r"@@([a-z_]+\.[a-z]+)@@\n", lambda match: _shared(match[1]), text)


def _shared(name: str) -> str:
    return PACKAGE.joinpath(name).read_text(encoding="utf-8")


@functools.cache
def content_policy(page: str) -> str:
    """Only the page's own scripts and styles may act, known by their hashes; nothing may be fetched."""
    scripts = _hashes(re.findall(r"<script>(.*?)</script>", page, re.DOTALL))
    styles = _hashes(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    rules = ["default-src 'none'", f"script-src {scripts}", f"style-src {styles}", "img-src data:"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _hashes(blocks: Iterable[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def script_json(data: Any) -> str:
    """JSON that can neither close its script element nor break a line; UTF-8 holds all of it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def short_name(name: object) -> str:
    """A name as it goes into a page: not endless, and without characters that steer the text around it."""
    return visible(shorten(str(name), LONGEST_NAME))


def with_units(text: str) -> str:
    """The text with every number kept on one line with its unit."""
    return text.replace(" points", "\u00a0points").replace(" %", "\u00a0%")


def rounded(value: float | None, digits: int = 5) -> float | None:
    """So many significant digits, which is more than a page shows; None for what is not a number."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
