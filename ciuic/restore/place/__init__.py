"""Writing the files, directories and links of a restore into the target."""
