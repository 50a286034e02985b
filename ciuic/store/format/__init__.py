"""The bytes of the store, as docs/format.md specifies them."""
