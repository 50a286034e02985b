"""What the sessions of several machines tell each other through a bucket: docs/protocol.md."""
