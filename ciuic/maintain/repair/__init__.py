"""Repair: find what is damaged, where its bytes still are, and write them again."""
