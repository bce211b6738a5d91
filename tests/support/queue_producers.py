"""Producer processes of the tests: `python queue_producers.py NAME HANDLE`, the handle pickled, in hexadecimal."""

import os
import pickle
import signal
import sys
import time

import numpy as np
import scenes_lists


def arrays(producer):
    """Arrays on both sides of the size at which they travel beside the pickle, then an epoch's end."""
    for number in range(20):
        producer.put((np.full(4 if number % 2 else 50_000, number, np.float32), number, f"scene-{number}"))
    producer.end_epoch()
    print(sorted({"keras", "tensorflow", "jax", "torch", "h5py"} & set(sys.modules)))


def nul_texts(producer):
    for scene in scenes_lists.nul_texts():
        producer.put(scene)
    producer.close()


def endless(producer):
    with producer:
        while True:
            producer.put(np.zeros(3))
    print("ended")


def killed(producer):
    for number in range(3):
        producer.put(number)
    os.kill(os.getpid(), signal.SIGKILL)


def raising(producer):
    producer.put(1)
    raise ZeroDivisionError("in the producer")


def raising_at_once(producer):
    raise FileNotFoundError("before its first scene")


class Fatal:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def killed_in_its_first_put(producer):
    producer.put(Fatal())


def killed_with_a_child(producer):
    producer.put(1)
    if not os.fork():
        os.close(1)
        os.close(2)
        time.sleep(20)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    globals()[sys.argv[1]](pickle.loads(bytes.fromhex(sys.argv[2])))
