"""Sends all chunks of a snapshot: walks its trees, and sends what the receiver lacks."""

from collections.abc import Callable
from typing import Final

from ciuic.ids import ChunkId
from ciuic.store.gc.mark import mark_tree
from ciuic.store.store import Store
from ciuic.store.transfer.sender import Sender

__all__ = ["TreeSender"]

_CHUNKS_AT_ONCE: Final = 50_000
"""Data chunks that are sorted by their places and sent together: some 20 MB of memory."""
_NODES_AT_ONCE: Final = 100_000
"""Nodes are sent later: a walk meets the nodes of one frame in many places."""
_SEEN_MAX: Final = 500_000
"""Nodes that are not walked again, some 50 MB; beyond that the walk begins to repeat itself."""


class TreeSender:
    """Sends the trees of snapshots of one store, and the chunks that they refer to.

    Nodes that were walked for one snapshot are not walked again for the next.

    Args:
        store: The store.
        sender: Sends chunks.
        check: Called from time to time; raises to end the walk.
    """

    def __init__(self, store: Store, sender: Sender, check: Callable[[], None]) -> None:
        self._store = store
        self._sender = sender
        self._check = check
        self._seen: set[ChunkId] = set()
        self._data: dict[ChunkId, None] = {}
        self._nodes: dict[ChunkId, None] = {}

    def send(self, root: ChunkId) -> None:
        """Send the tree of a root and all chunks below it.

        Raises:
            CorruptionError: A chunk is missing or damaged. Parts of the tree may have been sent;
                the walks that follow walk all of it again.
            StoreError: One of the stores failed.
        """
        try:
            mark_tree(self._store.reader, self, root, check=self._check)
            self._send_data()
            self._send_nodes()
            self._sender.finish()
        except BaseException:
            self._seen, self._data, self._nodes = set(), {}, {}
            self._sender.drop_waiting()
            raise

    def add_data(self, chunk_ids: list[ChunkId]) -> None:
        """See ``Marking``."""
        self._data.update(dict.fromkeys(chunk_ids))
        if len(self._data) >= _CHUNKS_AT_ONCE:
            self._send_data()

    def add_node(self, node_id: ChunkId) -> bool:
        """See ``Marking``."""
        if node_id in self._seen:
            return False
        if len(self._seen) >= _SEEN_MAX:
            self._seen = set()
        self._seen.add(node_id)
        self._nodes[node_id] = None
        if len(self._nodes) >= _NODES_AT_ONCE:
            self._send_nodes()
        return True

    def _send_data(self) -> None:
        data, self._data = self._data, {}
        self._sender.send(data)

    def _send_nodes(self) -> None:
        nodes, self._nodes = self._nodes, {}
        self._sender.send(nodes)
