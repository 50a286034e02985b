"""Layers: parameters in groups, the important groups first.

groups   which parameter belongs to which group
commits  the writer's side: a save that commits group after group
"""
