"""The store's directory: its files, locks and owner, without the content of packs."""
