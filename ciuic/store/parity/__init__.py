"""Reed-Solomon parity of packs. docs/format.md, "Parity"."""
