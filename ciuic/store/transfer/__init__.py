"""Sends chunks of one store to another, as frames, without decoding them."""
