"""Labeled images: an embedded Fashion-MNIST sample, the official data sets, and folders of pictures; and texts.

    labeled    Labeled: images, labels, class names; choosing samples and classes; resizing (Pillow) and scaling
    sources    load(name or path), the one entry
    official   official files: found under LAYERLAW_DATA or downloaded, and checked
    mnist      Fashion-MNIST, its embedded sample, and MNIST, from idx files
    cifar      CIFAR-10, binary and python layout, the latter by an unpickling that runs nothing
    folder     a folder of class folders of pictures
    texts      load_text(name or path): documents for language models, from plain text and JSON lines, also gzipped

Pillow and pooch (extra "data") and datasets (extra "datasets") are imported when first needed, not before.
"""

from layerlaw.data.labeled import Labeled
from layerlaw.data.sources import DEFAULT, load, names
from layerlaw.data.texts import Text, load_text, text_names

__all__ = ["DEFAULT", "Labeled", "Text", "load", "load_text", "names", "text_names"]
