"""The work under the lock: adds to a number in a file that nothing else protects."""
import time


def ship(path):
    with open(path) as f:
        number = int(f.read())
    time.sleep(0.002)
    with open(path, "w") as f:
        f.write(str(number + 1))
