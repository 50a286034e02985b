"""The demonstration that ``scripts/demo`` runs: a training run is killed and recovered, twice.

``__main__`` reads the arguments and cleans up, ``acts`` has the story, ``in_loop`` its second act,
``stage`` runs and shows commands, ``kill`` kills the training during a write, ``journal`` reads the
training's log, ``train`` is the training program, ``train_in_loop`` the same with the library, and
``picture`` draws the README's picture.

All modules except the two training programs and ``picture`` need only the standard library, because
they run before ciuic is installed. They use ciuic as a user does: by its commands, never by its
modules.
"""
