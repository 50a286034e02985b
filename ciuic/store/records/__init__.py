"""What a store holds, as values: manifests, trees, recipes, the header, the names of files."""
