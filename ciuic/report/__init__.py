"""Reports about snapshots, stores and machines. Nothing here changes a store."""
