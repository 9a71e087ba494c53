"""Many callers, or one alone."""

from __future__ import annotations

import threading
import time

from pygraph.runtime.call_lock import CallLock


def run(*bodies: object) -> None:
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "deadlock"


def test_one_alone_excludes_all_others() -> None:
    lock = CallLock()
    inside = [0]
    seen: list[int] = []

    def call() -> None:
        for _ in range(200):
            with lock.calling():
                inside[0] += 1
                time.sleep(0)
                inside[0] -= 1

    def link() -> None:
        for _ in range(50):
            with lock.calling(), lock.alone():
                seen.append(inside[0])
                time.sleep(0.0002)
                seen.append(inside[0])

    run(call, call, link, link, call)
    assert len(seen) == 200
    assert set(seen) == {0}


def test_several_may_call_at_a_time() -> None:
    lock = CallLock()
    together = threading.Barrier(3, timeout=10)

    def call() -> None:
        with lock.calling():
            together.wait()

    run(call, call, call)


def test_a_thread_may_enter_again() -> None:
    lock = CallLock()

    def nested() -> None:
        with lock.calling(), lock.calling(), lock.alone():
            with lock.calling(), lock.alone():
                pass
            with lock.calling():
                pass

    run(nested, nested)
    with lock.calling():
        pass


def test_who_is_inside_may_enter_again_though_somebody_waits_to_be_alone() -> None:
    lock = CallLock()
    is_inside, waits = threading.Event(), threading.Event()
    order: list[str] = []

    def call() -> None:
        with lock.calling():
            is_inside.set()
            assert waits.wait(10)
            time.sleep(0.02)  # the other one has come to its wait
            with lock.calling():
                order.append("again")

    def link() -> None:
        assert is_inside.wait(10)
        with lock.calling():
            waits.set()
            with lock.alone():
                order.append("alone")

    run(call, link)
    assert order == ["again", "alone"]
