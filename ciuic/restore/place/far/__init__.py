"""Large files from a bucket."""
