"""JSON objects: what ``--json`` prints, and what passes the control socket."""

from typing import Any, TypeAlias

__all__ = ["Document"]

Document: TypeAlias = dict[str, Any]
"""Any: its values are of every JSON type, nested to any depth."""
