"""Write the embedded Fashion-MNIST sample from the four official idx files; the same bytes each time.

    python scripts/embed_sample.py SOURCE_FOLDER [--out FILE]

The first 500 training and the first 200 test images of each class, in file order, as uint8; takes a few seconds.
Prints the sha256 that belongs into src/layerlaw/data/mnist.py.
"""

import argparse
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerlaw.data.mnist import FASHION_MNIST, PREFIX, SAMPLE_FILE, SAMPLE_PER_CLASS, read_pair

OUT = Path(__file__).parents[1] / "src" / "layerlaw" / "data" / "sample" / SAMPLE_FILE


def arrays(source: Path) -> dict[str, NDArray[np.uint8]]:
    made = {}
    for split, per_class in SAMPLE_PER_CLASS.items():
        files = (source / f"{PREFIX[split]}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        chosen = read_pair(FASHION_MNIST, *files).balanced(per_class)
        made[f"{split}_images"] = chosen.images[:, 0].numpy()
        made[f"{split}_labels"] = chosen.labels.numpy().astype(np.uint8)
    return made


def write_npz(path: Path, content: dict[str, NDArray[np.uint8]]) -> None:
    """An npz file without time stamps, so that the same arrays give the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in content.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # the same on every operating system
            entry.external_attr = 0o644 << 16
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
            archive.writestr(entry, buffer.getvalue(), compress_type=zipfile.ZIP_LZMA)  # 14 % less than deflated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with the four official idx .gz files")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    write_npz(options.out, arrays(options.source))
    digest = hashlib.sha256(options.out.read_bytes()).hexdigest()
    print(f"{options.out}: {options.out.stat().st_size} bytes, sha256 {digest}")


if __name__ == "__main__":
    main()
