"""Reused buffers."""

import os

from ciuic.system.buffers import BufferPool


def test_a_buffer_is_given_out_again_and_to_one_user_at_a_time():
    pool = BufferPool(4096)
    first, second = pool.take(), pool.take()

    assert first is not second
    pool.give_back(first)
    assert pool.take() is first


def test_a_forked_child_has_buffers_of_its_own():
    pool = BufferPool(4096)
    buffer = pool.take()
    buffer[:6] = b"parent"

    child = os.fork()
    if child == 0:
        buffer[:6] = b"child!"
        os._exit(0)
    os.waitpid(child, 0)

    assert buffer[:6] == b"parent"
