"""What the API answers about the course of a training.

timelines   the snapshots on a logged curve, and snapshots beside each other
"""
