"""Encoded images that are the same, byte by byte: how they are found, and what is said of them.

They are told by name. How many samples two splits share, prune() finds by itself, of arrays too.
"""

import hashlib
from collections.abc import Mapping, Sequence

from evenprune.reading import quoted

SHOWN = 5  # examples in a message


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def grouped(digests: Mapping[int, bytes]) -> list[list[int]]:
    """The places that have one digest, in order; those with one of their own are left out."""
    places: dict[bytes, list[int]] = {}
    for place, own in sorted(digests.items()):
        places.setdefault(own, []).append(place)
    return [same for same in places.values() if len(same) > 1]


def leaked(twins: Sequence[Sequence[int]], splits: Sequence[str], names: Sequence[str]) -> list[str]:
    """A note on images that are in several splits. splits, names: by the places that `twins` has."""
    shared = [same for same in twins if len({splits[place] for place in same}) > 1]
    if not shared:
        return []
    told = ", ".join(_names(same, splits, names) for same in shared[:SHOWN])
    more = f" … and {len(shared) - SHOWN:,} more" if len(shared) > SHOWN else ""
    many = f"{len(shared):,} images are" if len(shared) > 1 else "One image is"
    return [f"{many} in several splits, the same byte by byte: {told}{more}."]


def _names(same: Sequence[int], splits: Sequence[str], names: Sequence[str]) -> str:
    """All names of one image with their splits; the first of every split come first."""
    first = {splits[place]: place for place in reversed(same)}
    order = sorted(same, key=lambda place: first[splits[place]] != place)
    more = f" … and {len(same) - SHOWN:,} more" if len(same) > SHOWN else ""
    return " = ".join(f"{quoted(names[place])} ({splits[place]})" for place in order[:SHOWN]) + more
