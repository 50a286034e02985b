"""Guarding a training program: what its logs say, and what to do when it fails.

alerts    messages to people when a fault begins and when it ends
job       the processes of a training program: start, pause, limits, end
rules     a small language: conditions over the fields that a training program logs
logs      reading JSON Lines logs while a program writes them
recovery  broken checkpoints, and putting back valid versions of them
"""
