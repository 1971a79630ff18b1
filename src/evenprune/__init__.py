"""evenprune: prune a network, and prove that no group paid for it."""

from evenprune.audit import audit
from evenprune.limits import sample_size
from evenprune.tally import InputProblems
from evenprune.verdict import Audit, GroupHarmed

__version__ = "0.1.0"
__all__ = ["Audit", "GroupHarmed", "InputProblems", "audit", "sample_size"]
