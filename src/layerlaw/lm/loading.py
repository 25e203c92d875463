"""MODEL → a model and its tokenizer; and what else is needed of transformers: quiet, a model drawn anew, a vocabulary."""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layerlaw.errors import (
    DataError,
    InputError,
    LayerlawError,
    MissingExtraError,
    check_choice,
    check_whole,
    needed,
    shown,
)
from layerlaw.files import as_path
from layerlaw.lm.twins import plain_config, seeded
from layerlaw.lm.weights import CLASSES_ELSEWHERE
from layerlaw.packed import check_gguf, check_weight_files
from layerlaw.threads import Counted

END, MASK = "<|end|>", "<|mask|>"
LEAST_ENTRIES = 300  # 256 bytes, two special tokens, and some pairs
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@dataclass(frozen=True)
class GGUFHeader:
    """What a GGUF file says beside its weights: their quantization, whether a BOS is put before a text, and which."""

    quantization: str
    bos: bool | None = None
    bos_id: int | None = None


@dataclass(frozen=True)
class Loaded:
    """A model, its tokenizer where it has one, what it is called, and its mask token where no tokenizer knows it.

    `file`: what the file said that it was read from, where that was a GGUF file.
    """

    model: nn.Module
    tokenizer: Any
    name: str
    mask_id: int | None = None
    file: GGUFHeader | None = None

    def bos(self, tokenizer: Any) -> int | None:
        """The BOS of this tokenizer, or else of the file."""
        known = getattr(tokenizer, "bos_token_id", None)
        return known if known is not None or self.file is None else self.file.bos_id


def load(
    model: nn.Module | str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    dtype: str | torch.dtype | None = None,
    device_map: Any = None,
    mask_id: int | None = None,
    name: str | None = None,
) -> Loaded:
    """A language model and its tokenizer: a loaded model, a local folder, a Hugging Face name, or a GGUF file.

    A folder may hold an adapter of PEFT: it is put on its base, which is loaded too.

    tokenizer   one that is loaded, a folder, a name or a tokenizer.json; default: the model's own
    dtype       of the weights; default: float32 on a CPU, as saved where there is a GPU
    device_map  "auto" spreads the model over all devices (accelerate)
    mask_id     the token that stands for a masked one, where the tokenizer has none
    name        of the record; default: that of the model
    """
    check_whole(0, kind=Integral, mask_id=0 if mask_id is None else mask_id)
    own = load_tokenizer(tokenizer)
    if isinstance(model, nn.Module):
        if dtype is not None or device_map is not None:
            raise InputError("dtype and device_map are for models that are loaded here; this one is loaded already.")
        known = getattr(getattr(model, "config", None), "_name_or_path", "")
        return Loaded(model, own, name or Path(known).name or type(model).__name__, mask_id)
    if not isinstance(model, (str, os.PathLike)):
        raise InputError(
            f"model: expected an nn.Module, a folder, a Hugging Face name or a GGUF file, got {type(model).__name__}."
        )
    transformers = needed("transformers", "lm", f"loading '{model}'")
    if isinstance(dtype, str):
        check_choice("dtype", dtype, DTYPES)
        dtype = DTYPES[dtype]
    options: dict[str, Any] = {"dtype": dtype or ("auto" if torch.cuda.is_available() else torch.float32)}
    if device_map is not None:
        needed("accelerate", "lm", "spreading a model over devices (device_map)")
        options["device_map"] = device_map
    path = as_path(model, "model")
    if path.suffix == ".gguf":
        found, own, header = _gguf(transformers, path, own, options["dtype"])
        return Loaded(found, own, name or path.stem, mask_id, header)
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        return _adapted(path, own, name=name or path.name, dtype=dtype, device_map=device_map, mask_id=mask_id)
    where = str(path) if path.exists() else str(model)
    if not path.exists() and (path.is_absolute() or where.startswith((".", "~"))):
        raise DataError(f"{path}: expected a model folder or a GGUF file, found nothing there.")
    if path.is_dir():
        check_weight_files(path)
    with _explained(where):
        config = transformers.AutoConfig.from_pretrained(where)
        found = _class_for(transformers, config).from_pretrained(where, config=config, **options)
        refuse_images(found)  # before a tokenizer is looked for
        own = transformers.AutoTokenizer.from_pretrained(where) if own is None else own
    return Loaded(found, own, name or (path.name if path.exists() else str(model)), mask_id)


def drawn(kind: str, *, seed: int, **shape: Any) -> nn.Module:
    """A model of a kind that transformers knows ("bert", "gpt2", …) in a shape of one's own, with freshly drawn weights."""
    transformers = needed("transformers", "lm", f"building a model of the kind '{kind}'")
    config = transformers.AutoConfig.for_model(kind, **shape)
    return seeded(seed, lambda: transformers.AutoModel.from_config(config))


def refuse_images(model: nn.Module) -> None:
    """A network that reads pixels and no tokens is not for here; its error says where it is measured."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if getattr(model, "main_input_name", "") == "pixel_values" and not getattr(text, "vocab_size", None):
        expected = f"expected a language model, got {type(model).__name__}, which reads images"
        raise InputError(f"model: {expected}. {CLASSES_ELSEWHERE}.")


def _class_for(transformers: Any, config: Any) -> Any:
    """The class that the weights were saved from; else the one that fits the kind of model."""
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    if getattr(config, "is_encoder_decoder", False):
        return transformers.AutoModelForSeq2SeqLM
    kinds = (transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM)
    return next((auto for auto in kinds if type(config) in auto._model_mapping), transformers.AutoModel)


def _adapted(folder: Path, tokenizer: Any, **options: Any) -> Loaded:
    """The base that an adapter (PEFT) was trained on, with the adapter on it."""
    try:
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, OSError, AttributeError) as error:
        raise DataError(f"{folder}: expected an adapter_config.json of PEFT, got: {_line(error)}") from None
    by_hand = f"load both yourself: lm.load(PeftModel.from_pretrained(base, {str(folder)!r}), tokenizer=…)"
    if not base:
        raise DataError(f"{folder}: this is an adapter, and it does not say which model it belongs to; {by_hand}.")
    peft = needed("peft", "peft", f"putting the adapter {folder} on '{base}'")
    beside = folder / base
    try:
        found = load(beside if beside.exists() else base, tokenizer=tokenizer, **options)
    except DataError as error:
        raise DataError(
            f"{folder}: this is an adapter of '{base}', which was not found; {by_hand}. ({error})"
        ) from error
    own = found.tokenizer
    if tokenizer is None and (folder / "tokenizer_config.json").is_file():
        own = load_tokenizer(folder)
    check_weight_files(folder)
    with _explained(str(folder)):
        return replace(found, model=peft.PeftModel.from_pretrained(found.model, str(folder)), tokenizer=own)


def _gguf(transformers: Any, path: Path, own: Any, dtype: Any) -> tuple[nn.Module, Any, GGUFHeader]:
    if not path.is_file():
        raise DataError(f"{path}: expected a GGUF file, found none.")
    for package in ("gguf", "accelerate"):
        needed(package, "gguf", f"reading the GGUF file {path.name}")
    place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    check_gguf(path, _gguf_blocks())
    with _explained(str(path)):
        packed = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
        if own is None and (path.parent / "tokenizer.json").is_file():  # the one inside takes a minute to convert
            own = transformers.PreTrainedTokenizerFast.from_pretrained(str(path.parent))
        elif own is None:
            own = transformers.AutoTokenizer.from_pretrained(**place)
    # A model read from GGUF still calls itself quantized and refuses to change its dtype: a plain one takes its weights.
    plain: nn.Module = type(packed)(plain_config(packed))
    plain.load_state_dict(packed.state_dict())
    return plain if dtype == "auto" else plain.to(dtype), own, _gguf_header(path)


def _gguf_blocks() -> dict[int, tuple[int, int]]:
    sizes = needed("gguf", "gguf", "reading a GGUF file").GGML_QUANT_SIZES
    return {int(kind): pair for kind, pair in sizes.items()}


def _gguf_header(path: Path) -> GGUFHeader:
    reader_of = needed("gguf", "gguf", f"reading the GGUF file {path.name}").GGUFReader
    check_gguf(path, _gguf_blocks())
    with _explained(str(path)):
        reader = reader_of(str(path))
        sizes: Counter[str] = Counter()
        for tensor in reader.tensors:
            sizes[tensor.tensor_type.name] += int(tensor.n_elements)
        keys = (reader.fields.get(f"tokenizer.ggml.{name}") for name in ("add_bos_token", "bos_token_id"))
        bos, bos_id = (None if key is None else key.contents() for key in keys)
    if not (bos is None or isinstance(bos, (bool, int))) or not (bos_id is None or isinstance(bos_id, int)):
        raise DataError(f"{path}: expected a BOS token by its number, got {shown(bos_id)} ({shown(bos)}).")
    kinds = [kind for kind, size in sizes.most_common() if size > 0.01 * sizes.total()]  # norms are always kept whole
    return GGUFHeader(f"{', '.join(kinds)} (GGUF)", None if bos is None else bool(bos), bos_id)


def load_tokenizer(tokenizer: Any) -> Any:
    """A tokenizer from a folder, a name or a tokenizer.json; a loaded one stays (one of `tokenizers` is wrapped)."""
    if type(tokenizer).__module__.partition(".")[0] == "tokenizers":  # the library's own, which knows no special tokens
        transformers = needed("transformers", "lm", "a tokenizer of the package tokenizers")
        return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    if not isinstance(tokenizer, (str, os.PathLike)):
        return tokenizer
    transformers = needed("transformers", "lm", "loading a tokenizer")
    path = as_path(tokenizer, "tokenizer.json")
    if not path.exists() and (path.suffix == ".json" or str(tokenizer).startswith((".", "/", "~"))):
        raise DataError(f"{tokenizer}: expected the folder of a tokenizer or a tokenizer.json, found none.")
    if path.suffix == ".json":
        try:
            return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
        except Exception as error:  # the Rust side raises plain exceptions
            expected = "expected a tokenizer.json as the package tokenizers writes it"
            raise DataError(f"{tokenizer}: {expected}, got: {_line(error)}") from None
    with _explained(str(tokenizer)):
        return transformers.AutoTokenizer.from_pretrained(str(path) if path.exists() else str(tokenizer))


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Errors of the loader, with what was looked for and what to do."""
    try:
        yield
    except ImportError as error:
        why = f"loading '{where}' ({_line(error)})"
        raise MissingExtraError("transformers and what it asks for", "lm", why) from error
    except LayerlawError:
        raise
    except Exception as error:  # the Rust side of tokenizers raises plain ones
        hint = "Is the name right, is there a network? A local folder or a GGUF file needs none."
        if Path(where).exists():
            hint = "Is it whole, and is it a model (a folder with a config.json and weights, or a GGUF file)?"
        elif os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
            hint = "HF_HUB_OFFLINE is set, so nothing is downloaded: give a local folder or a GGUF file, or unset it."
        here = "" if Path(where).exists() else ", and there is no folder of that name here"
        expected = f"expected a language model or tokenizer that transformers can load{here}"
        raise DataError(f"'{where}': {expected}. {hint} (They say: {_line(error)})") from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}…"


@contextmanager
def _without_warnings() -> Iterator[None]:
    import transformers

    logging: Any = transformers.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(transformers|torch\.jit|huggingface_hub)(\..*)?")
            yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def _without_bars() -> Iterator[None]:
    import transformers

    logging: Any = transformers.utils.logging
    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()


_no_warnings, _no_bars = Counted(_without_warnings), Counted(_without_bars)


@contextmanager
def quiet_transformers(*, bars: bool = False) -> Iterator[None]:
    """No warnings of transformers, which do not speak of the result, and unless asked for no bars; errors still come."""
    if importlib.util.find_spec("transformers") is None:  # whoever needs it says so
        yield
        return
    with _no_warnings, nullcontext() if bars else _no_bars:
        yield


def train_vocabulary(documents: Iterable[str], size: int) -> Any:
    """A byte-level byte-pair tokenizer of transformers' kind with `size` entries; the last one is the mask."""
    if size < LEAST_ENTRIES:
        raise InputError(f"size: expected at least {LEAST_ENTRIES} entries (all bytes and some pairs), got {size}.")
    tokenizers, transformers = (needed(name, "lm", "training a vocabulary") for name in ("tokenizers", "transformers"))
    pairs = tokenizers.ByteLevelBPETokenizer()
    lines = (line for document in documents for line in document.splitlines(keepends=True))
    pairs.train_from_iterator(lines, vocab_size=size - 1, special_tokens=[END], show_progress=False)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer, eos_token=END, mask_token=MASK)
    if len(made) != size:
        raise InputError(f"text: expected enough of it for {size} entries, got {len(made)}. Ask for fewer.")
    return made
