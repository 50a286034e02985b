"""The demonstration that ``scripts/demo`` runs: a training run is killed and recovered.

``__main__`` reads the arguments and cleans up, ``acts`` has the story, ``stage`` runs and shows
commands, ``kill`` kills the training during a write, ``journal`` reads the training's log,
``train`` is the training program, ``picture`` draws the README's picture.

All modules except ``train`` and ``picture`` need only the standard library, because they run before
ciuic is installed. They use ciuic as a user does: by its commands, never by its modules.
"""
