"""What a record keeps for the pictures: samples of all ranks, and three classes where the classifier reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from layerlaw.capture.fingerprint import Places, one_sequence
from layerlaw.later import later
from layerlaw.measures.collapse import VIEWED, collapse_view
from layerlaw.stats.plane import FEW_BYTES, SAMPLES, SITE_BYTES, Condensed, PlaneSample
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import all_reduce, dealt_out, gathered, rank, world_size
from layerlaw.stats.regression import FirstRegression

if TYPE_CHECKING:
    from layerlaw.probing.run import Prober
    from layerlaw.probing.state import Split, State

Table = tuple[int, int, torch.dtype]
"""Of a site: the most rows that are kept, features, dtype."""
MANY = 2**18  # numbers of the samples of wide sites: so many are not sent to every rank
AT_ONCE = 2**23  # numbers of several sites that are sent in one call


class PictureSample(PlaneSample):
    """Also remembers the places of its samples among those that came, by which ranks choose as one process would."""

    def __init__(self, classes: int, samples: int = SAMPLES) -> None:
        super().__init__(classes, samples)
        self.places: list[int] = []
        self._came = 0

    def begin(self, labels: Tensor, number: int = 0) -> None:
        """Choose from a batch."""
        super().begin(labels, number)
        self.places += [self._came + row for row in self._rows]
        self._came += len(labels)


class Share(NamedTuple):
    """Some of the samples that `came` to a rank: which `rows` of these (`None`: all), and the places of all that came.

    Places are those of the data as they were dealt, also where samples of some classes are not measured.
    """

    came: int
    rows: Tensor | None
    places: Places | None


class OfRank(NamedTuple):
    """What others need to know of the samples that a rank has kept."""

    labels: list[int]
    share: Share
    shapes: dict[str, tuple[int, torch.dtype]]  # features and dtype of every site
    targets: Tensor | None  # of a regression, the first one (n, 1)


def places_among(shares: Sequence[Share]) -> list[Tensor]:
    """Where some samples of every rank stand among all that came; those without known places stand rank by rank."""
    starts = [(sum(share.came for share in shares[:r]), 1) for r in range(len(shares))]
    if one_sequence([(share.came, share.places) for share in shares if share.came]):
        starts = [share.places or (0, 1) for share in shares]
    rows = [torch.arange(share.came) if share.rows is None else share.rows for share in shares]
    return [first + step * mine for mine, (first, step) in zip(rows, starts, strict=True)]


def choose_among_ranks(state: State, read: str | None = None) -> None:
    """The samples for the pictures that one process would have kept of those of all ranks, on every one of them.

    A rank has kept all of its own that are among these: whatever comes before a sample on its rank comes before it in all.
    Of wide sites, but for the one that is `read`, ranks have what the planes need of them in the end.
    """
    if state.sample is None or world_size() == 1:
        return
    mine = state.classes.sample() if state.borrowed else state.sample  # those of another rank are chosen there
    kept = {site.name: found for site in state.sites if (found := mine.features(site.name)) is not None}
    shapes = {name: (found.shape[1], found.dtype) for name, found in kept.items()}
    targets = torch.cat(state.first.pictured)[:, :1] if isinstance(state.first, FirstRegression) else None
    share, few = state.share(), torch.tensor(mine.places, dtype=torch.long)
    share = share._replace(rows=few if share.rows is None else share.rows[few])
    ranks = gathered(OfRank(mine.labels, share, shapes, targets))
    rows = sorted(
        (place, r, i)
        for r, at in enumerate(places_among([one.share for one in ranks]))
        for i, place in enumerate(at.tolist())
    )
    labels, choice = torch.tensor([ranks[r].labels[i] for _, r, i in rows], dtype=torch.long), state.classes.sample()
    choice.begin(labels)
    chosen = [rows[place][1:] for place in choice.places]  # of which rank, and which of its own
    whole = state.sample = state.classes.sample()
    whole.begin(labels[torch.tensor(choice.places, dtype=torch.long)])
    shapes = {name: shape for one in ranks for name, shape in one.shapes.items()}
    waiting: dict[str, Table] = {}
    for name, (d, dtype) in shapes.items():
        waiting[name] = min(len(chosen), max(2, SITE_BYTES // (4 * d))), d, dtype  # so many rows one process keeps
        little = sum(rows * d for rows, d, _ in waiting.values()) < AT_ONCE
        if little and name != next(reversed(shapes)):
            continue
        samples, condensed = put_together(chosen, waiting, kept, read)
        for one, table in samples.items():
            whole.update(one, table)
        whole.condensed.update(condensed)
        waiting = {}
    if isinstance(state.first, FirstRegression):
        state.first.pictured = [torch.stack([ranks[r].targets[i] for r, i in chosen])]  # type: ignore[index]


def put_together(
    chosen: Sequence[tuple[int, int]], tables: Mapping[str, Table], kept: Mapping[str, Tensor], read: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Condensed]]:
    """The `chosen` samples of several sites, or what planes need of them where all together they are many.

    `chosen` says of which rank each is, and which of those that are `kept` there. Wide sites are dealt to the ranks.
    """
    wide = {name: table for name, table in tables.items() if table[1] > table[0] and name != read}
    if sum(n * d for n, d, _ in wide.values()) < MANY:
        wide = {}
    found = {name: torch.zeros(n, d, dtype=dtype) for name, (n, d, dtype) in tables.items() if name not in wide}
    for name in kept.keys() & found.keys():
        places, rows = _rows_of(chosen[: len(found[name])], rank())
        found[name][places] = kept[name].cpu()[rows]
    matrices = {name: torch.zeros(n, n, dtype=dtype) for name, (n, _, dtype) in wide.items()}
    sizes = {name: torch.zeros(1, 1, dtype=dtype) for name, (*_, dtype) in wide.items()}
    with full_precision():
        for name, table in _dealt(chosen, wide, kept).items() if wide else ():
            made = Condensed.of(table)
            matrices[name], sizes[name] = made.matrix, made.size
    # Of each row, and of each matrix, one rank has numbers, the others zeros.
    all_reduce([*found.values(), *matrices.values(), *sizes.values()], always=True)
    return found, {name: Condensed(matrix, sizes[name], wide=True) for name, matrix in matrices.items()}


def _dealt(
    chosen: Sequence[tuple[int, int]], tables: Mapping[str, Table], kept: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The chosen samples of those sites that this rank works through; all send it their rows of them."""
    work, sites = [0] * world_size(), [[] for _ in range(world_size())]  # type: tuple[list[int], list[list[str]]]
    for name, (n, d, _) in tables.items():
        least = work.index(min(work))
        sites[least].append(name)
        work[least] += n * d
    widest = max((dtype for *_, dtype in tables.values()), key=lambda dtype: dtype.itemsize)
    own = [tables[name] for name in sites[rank()]]
    places = [[_rows_of(chosen[:n], r)[0] for n, *_ in own] for r in range(world_size())]
    lengths = [[len(there) * d for there, (_, d, _) in zip(one, own, strict=True)] for one in places]
    rows = {name: _rows_of(chosen[:n], rank())[1] for name, (n, *_) in tables.items() if name in kept}
    there = [sum(len(rows[name]) * tables[name][1] for name in some if name in rows) for some in sites]
    sent, at = torch.empty(sum(there), dtype=widest), 0
    for name in (name for some in sites for name in some if name in rows):
        room = sent[at:][: len(rows[name]) * tables[name][1]].view(-1, tables[name][1])
        torch.index_select(kept[name].to("cpu", widest), 0, rows[name], out=room)
        at += room.numel()
    found = [torch.empty(n, d, dtype=dtype) for n, d, dtype in own]
    for part, some, sizes in zip(dealt_out(sent, there, list(map(sum, lengths))), places, lengths, strict=True):
        for table, here, numbers in zip(found, some, torch.split(part, sizes), strict=True):
            table.index_copy_(0, here, numbers.to(table).view(-1, table.shape[-1]))
    return dict(zip(sites[rank()], found, strict=True))


def _rows_of(chosen: Sequence[tuple[int, int]], one: int) -> tuple[Tensor, Tensor]:
    """Where the chosen rows of one rank stand among all, and which of its own they are."""
    ranks, rows = torch.tensor(chosen).view(-1, 2).long().unbind(1)
    places = (ranks == one).nonzero().squeeze(1)
    return places, rows[places]


def three_classes(run: Prober, train: Split, weight: Tensor | str) -> dict[str, Any]:
    """The first three classes in three dimensions, as `measures.collapse` finds them, with rows of the classifier if known.

    Empty where there are fewer classes, or where what the classifier reads is no site.
    """
    site = next((site for site in train.around if site.name == run.plan.reads), None)
    if site is None or train.read is None or run.classes.K < 3:
        return {}
    read, labels, place = train.read, train.plane_labels, train.around[site].index
    centers = train.around[site].alike.centers
    few = read.nbytes <= FEW_BYTES
    # Of their own, so that nothing larger is held until somebody looks.
    means = centers.means[place, :3].clone()
    if centers.origin is not None:
        means += centers.origin[place]
    rows = weight[:3].to(means, copy=True) if isinstance(weight, Tensor) else None
    if few and means.device.type != "cpu":  # a GPU is slow with small matrices
        read, means, rows = read.cpu(), means.cpu(), None if rows is None else rows.cpu()

    def found() -> dict[str, Any]:
        # Wide features keep fewer samples.
        taken = [[i for i, label in enumerate(labels[: len(read)]) if label == k][:VIEWED] for k in range(3)]
        samples = read[[i for some in taken for i in some]].to(means)
        with full_precision():
            view = collapse_view(means, rows, samples, [k for k, some in enumerate(taken) for _ in some])
        return {"classes": [0, 1, 2], **view} if view else {}

    return later(found, read.nbytes + means.nbytes) if few else found()
