"""Putting paths of a snapshot back."""
