"""MODEL → a model and its tokenizer; and what else is needed of transformers: quiet, a model drawn anew, a vocabulary."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
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
    check_choice,
    check_whole,
    needed,
    shown,
)
from layerlaw.files import as_path
from layerlaw.lm.adapters import missing_refused, refuse_missing_adapter
from layerlaw.lm.claims import check_claims
from layerlaw.lm.tokenizer import error_line, explained, knows_no_words, load_tokenizer, pretrained_tokenizer
from layerlaw.lm.twins import plain_config, seeded
from layerlaw.lm.weights import CLASSES_ELSEWHERE
from layerlaw.module_tree import class_of
from layerlaw.packed import check_gguf, check_weight_files
from layerlaw.threads import Counted

STEP = re.compile(r"(step|checkpoint|ckpt|iteration|iter|epoch)[-_=]?(\d+)", re.IGNORECASE)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
RUNS_CODE = (
    "megatron_config",
    "tokenizer_kwargs",
)  # of an adapter: names modules to import, or trusts a tokenizer's code
POOLS = re.compile(r"(^|\.)pooler\.")
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
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Loaded:
    """A language model and its tokenizer: a loaded model, a local folder, a Hugging Face name, or a GGUF file.

    A folder may hold an adapter of PEFT: it is put on its base, which is loaded too.

    tokenizer   one that is loaded, a folder, a name or a tokenizer.json; default: the model's own
    dtype       of the weights; default: float32 on a CPU, as saved where there is a GPU
    device_map  "auto" spreads the model over all devices (accelerate)
    mask_id     the token that stands for a masked one, where the tokenizer has none
    name        of the record; default: that of the model; a training step in it ("step1000", "checkpoint-500") is kept
    revision    a branch or tag on Hugging Face ("step1000"), or of a local folder one of the folders in it
    trust_remote_code  run the Python code that a model or tokenizer brings along; only where you trust its author
    """
    check_choice("trust_remote_code", trust_remote_code, (True, False))
    check_whole(0, kind=Integral, mask_id=0 if mask_id is None else mask_id)
    own = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    if isinstance(model, nn.Module):
        if not (dtype is device_map is revision is None):
            told = "dtype, device_map and revision are for models that are loaded here"
            raise InputError(f"{told}; this one is loaded already.")
        known = getattr(getattr(model, "config", None), "_name_or_path", "")
        return Loaded(model, own, name or Path(known).name or class_of(model).__name__, mask_id)
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
    if revision is not None:
        name = f"{name or (path.name if path.exists() else model)} {revision}"
        path, revision = (_version(path, revision), None) if path.exists() else (path, revision)
        model = path if revision is None else model
    if path.suffix == ".gguf":
        found, own, header = _gguf(transformers, path, own, options["dtype"])
        return Loaded(found, own, name or path.stem, mask_id, header)
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        return _adapted(
            path,
            own,
            name=name or path.name,
            dtype=dtype,
            device_map=device_map,
            mask_id=mask_id,
            trust_remote_code=trust_remote_code,
        )
    where = str(path) if path.exists() else str(model)
    if not path.exists() and (path.is_absolute() or where.startswith((".", "~"))):
        raise DataError(f"{path}: expected a model folder or a GGUF file, found nothing there.")
    if path.is_dir():
        refuse_run(path)
        check_weight_files(path)
    with explained(where):
        which = {} if revision is None else {"revision": revision}
        config = transformers.AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code, **which)
        refuse_kernels(config, where)
        options |= {
            "weights_only": True,
            "trust_remote_code": trust_remote_code,
            **which,
        }  # a pickle of weights is not run
        kind = _class_for(transformers, config)
        if path.is_dir() and not trust_remote_code:  # code that a user trusts may count as it likes
            check_claims(config, path, kind)
        found, told = kind.from_pretrained(where, config=config, output_loading_info=True, **options)
        refuse_missing(found, told, where)
        refuse_images(found)  # before a tokenizer is looked for
        if own is None:
            beside = str(path.parent) if _tokenizer_is_above(path) else where
            own = pretrained_tokenizer(beside, trust_remote_code=trust_remote_code, **which)
            own = None if knows_no_words(own) else own
    return Loaded(found, own, name or (path.name if path.exists() else str(model)), mask_id)


def _version(folder: Path, revision: str) -> Path:
    """One of the folders in a local folder of checkpoints."""
    if not (folder / revision).is_dir():
        there = sorted(child.name for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
        came = f"there are {', '.join(there[:8])}{' …' * (len(there) > 8)}" if there else "it holds no folders"
        raise DataError(f"{folder}: expected a folder '{revision}' in it, as a local revision; {came}.")
    return folder / revision


def refuse_run(folder: Path) -> None:
    """A folder that is no model but holds some, the checkpoints of a run, say: its error names them."""
    if (folder / "config.json").exists():
        return
    there = [child.name for child in folder.iterdir() if (child / "config.json").is_file()]
    there.sort(key=lambda name: (step_of(name).get("step", -1), name))
    if there:
        named = f"{', '.join(there[:8])}{' …' * (len(there) > 8)}"
        cure = (
            f"Choose some: revision='{','.join(there[:2])}', or {folder / there[0]}"
            if len(there) > 1
            else f"Use {folder / there[0]}"
        )
        raise DataError(f"{folder}: expected a model with a config.json, got a folder that holds {named}. {cure}.")


def _tokenizer_is_above(folder: Path) -> bool:
    """Whether a checkpoint has no tokenizer, but the folder of its run has one."""
    here, above = (any((place / name).is_file() for name in TOKENIZER_FILES) for place in (folder, folder.parent))
    return folder.is_dir() and above and not here


def step_of(name: str) -> dict[str, Any]:
    """The training step that a name tells, as settings of a record; none where it tells none.

    >>> step_of("pythia-70m step1000"), step_of("run/checkpoint-500")["step"], step_of("SmolLM2-135M")
    ({'step': 1000, 'step_unit': 'step'}, 500, {})
    """
    found = list(STEP.finditer(name))
    if not found:
        return {}
    return {"step": int(found[-1][2]), "step_unit": "epoch" if found[-1][1].lower() == "epoch" else "step"}


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


def refuse_kernels(config: Any, where: str) -> None:
    """A config may name attention code of a stranger's, to be downloaded and run ("owner/kernel"): that is refused."""
    named = getattr(config, "_attn_implementation", None)
    for part in named.values() if isinstance(named, dict) else [named]:
        if "/" in str(part):
            cure = "Load the model yourself with an attn_implementation of your choice, and give it to lm.load"
            raise DataError(
                f"'{where}': expected a model without code of its own, got attention code '{part}'. {cure}."
            )


def refuse_missing(model: nn.Module, told: Mapping[str, Any], where: str) -> None:
    """Weights that are not in the files would be drawn at random, others each time: that is refused.

    `told` is what transformers says of loading. What pools a text into one vector is no part of a language model.
    """
    own = dict(model.named_parameters())
    missing = sorted(name for name in told.get("missing_keys", ()) if name in own and not POOLS.search(name))
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        got = f"none for {', '.join(map(shown, missing[:3]))}{more}"
        cure = "Is config.json that of these weights? A model that is meant to be untrained can be given as it is"
        raise DataError(f"'{where}': expected weights for all parameters, got {got}. {cure} (lm.load(model)).")


def _class_for(transformers: Any, config: Any) -> Any:
    """The class that the weights were saved from; else the one that fits the kind of model."""
    for name in getattr(config, "architectures", None) or ():
        known = getattr(transformers, name, None)
        if isinstance(known, type) and issubclass(known, transformers.PreTrainedModel):
            return known
    if getattr(config, "is_encoder_decoder", False):
        return transformers.AutoModelForSeq2SeqLM
    kinds = (transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM)
    own = getattr(config, "auto_map", None) or {}  # code that the model brings, which ran only if the user said so
    return next(
        (auto for auto in kinds if type(config) in auto._model_mapping or auto.__name__ in own), transformers.AutoModel
    )


def _adapted(folder: Path, tokenizer: Any, **options: Any) -> Loaded:
    """The base that an adapter (PEFT) was trained on, with the adapter on it."""
    try:
        about = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        base = about.get("base_model_name_or_path")
    except (ValueError, OSError, AttributeError) as error:
        raise DataError(f"{folder}: expected an adapter_config.json of PEFT, got: {error_line(error)}") from None
    if not isinstance(base, (str, type(None))):
        raise DataError(f"{folder}: expected the name of a model as base_model_name_or_path, got {base!r:.80}.")
    if running := [name for name in RUNS_CODE if about.get(name)]:
        raise DataError(f"{folder}: expected an adapter without {running[0]}, which lets PEFT run other code.")
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
        own = load_tokenizer(folder, trust_remote_code=options["trust_remote_code"])
    check_weight_files(folder)
    with explained(str(folder)):
        with missing_refused(folder):
            model = peft.PeftModel.from_pretrained(found.model, str(folder))
        refuse_missing_adapter(peft.get_peft_model_state_dict(model, save_embedding_layers=False), folder)
    return replace(found, model=model, tokenizer=own)


def _gguf(transformers: Any, path: Path, own: Any, dtype: Any) -> tuple[nn.Module, Any, GGUFHeader]:
    if not path.is_file():
        raise DataError(f"{path}: expected a GGUF file, found none.")
    for package in ("gguf", "accelerate"):
        needed(package, "gguf", f"reading the GGUF file {path.name}")
    place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    check_gguf(path, _gguf_blocks())
    with explained(str(path)):
        packed, told = transformers.AutoModelForCausalLM.from_pretrained(
            **place, dtype=torch.float32, weights_only=True, trust_remote_code=False, output_loading_info=True
        )
        refuse_missing(packed, told, str(path))
        if own is None and (path.parent / "tokenizer.json").is_file():  # the one inside takes a minute to convert
            own = transformers.PreTrainedTokenizerFast.from_pretrained(str(path.parent))
        elif own is None:
            own = transformers.AutoTokenizer.from_pretrained(**place, trust_remote_code=False)
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
    with explained(str(path)):
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
