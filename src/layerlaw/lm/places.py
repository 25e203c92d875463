"""Where the state of each token stands: most models give one per token, some pad the text or put something in front."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from layerlaw.errors import CaptureError
from layerlaw.lm.anatomy import DRY_TOKENS, dry_inputs, is_encoder_decoder, states, vocabulary_of
from layerlaw.lm.blocks import Blocks


@dataclass(frozen=True)
class Places:
    """The state of a piece's first token stands at `shift`; `longer`: there may be more states than tokens."""

    shift: int = 0
    longer: bool = False

    def of(self, hidden: Tensor, told: tuple[int, int]) -> Tensor:
        """The states (B, T, d) of the tokens that are looked at."""
        batch, time = told
        if not self.longer and tuple(hidden.shape[:2]) == told:
            return hidden
        if not self.longer or hidden.shape[0] != batch or hidden.shape[1] < self.shift + time:
            raise CaptureError(
                f"expected a state of each token ({batch} pieces of {time}), got {tuple(hidden.shape)}, unlike in the dry "
                "run. Use another length, or name other blocks."
            )
        return hidden[:, self.shift : self.shift + time]


def places_of(model: nn.Module, blocks: Blocks, device: torch.device, length: int) -> Places:
    """Compare states with tokens, also of a piece as long as they will be; where there are more, see which are theirs."""
    inputs = dry_inputs(model, device)
    names = next(iter(inputs)), "decoder_input_ids" if is_encoder_decoder(model) else next(iter(inputs))
    read, told = (tuple(inputs[name].shape) for name in names)
    if read != told == blocks.seen:
        return Places()
    if blocks.seen == read != told:
        raise CaptureError(
            f"blocks: expected blocks of the decoder, which tells what was cut out, got '{blocks.home}' of the encoder."
        )
    if blocks.seen == told[::-1]:
        raise CaptureError(
            f"'{blocks.home}': expected hidden states (batch, time, width) for ids of shape {told}, got {blocks.seen}: "
            "blocks with time along axis 0 are not supported. Wrap the model so that batches come first."
        )
    if blocks.seen[0] == told[0] and blocks.seen[1] >= told[1]:
        odd = length - 1 + length % 2  # no multiple of what models pad to
        places = _tried(model, blocks, device, odd)
        if places is not None:
            return places
    raise CaptureError(
        f"'{blocks.home}': expected one state of each token, got states {blocks.seen} for tokens {told} (batch, time). "
        "Blocks that join or split tokens cannot be measured; name others (blocks, or --blocks)."
    )


def _tried(model: nn.Module, blocks: Blocks, device: torch.device, tokens: int) -> Places | None:
    """Change one token and see which state moves most; `None` where that is not always as far behind its token.

    Nor where an earlier state, which might as well be the token's, always moves first.
    """
    size = vocabulary_of(model)
    ids = torch.arange(size - tokens, size, device=device)[None].remainder(size)
    plain = states(model, blocks, ids)[0]
    if plain.shape[1] == tokens:
        return Places(longer=blocks.seen[1] != DRY_TOKENS)
    found, begun = set(), set()
    for place in (tokens // 3, tokens // 2, tokens - 2):
        other = ids.clone()
        other[0, place] = (ids[0, place] + size // 2) % size
        moved = (states(model, blocks, other)[0] - plain).abs().sum(-1)[0]
        found.add(int(moved.argmax()) - place)
        begun.add(int((moved > 1e-6 * moved.max()).float().argmax()) - place)
    shift = found.pop()
    clear = not found and not (len(begun) == 1 and 0 <= min(begun) < shift)
    return Places(shift, longer=True) if clear and 0 <= shift <= plain.shape[1] - tokens else None
