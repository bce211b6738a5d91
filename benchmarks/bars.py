"""The bars of kerasfeed, and whether the figures meet them.

Invariant: pure. A bar whose cases were not run is "not measured", never met.
"""

from benchmarks.bar import Bar, Verdict, ratio, ratio_to_best, verdict
from benchmarks.catalog import PEERS, WORKLOADS
from benchmarks.figures import Figures
from benchmarks.hdf5.bars import hdf5_bars

FLAT_MB = 10.0
"""Memory counts as flat if it grows by less than this many megabytes over 2,000 batches."""
FIRST_BATCH_SECONDS = 0.6
NOISE = 0.98
"""Never slower: at least this ratio, because two cases that both wait differ only by noise."""
FIT_PEERS = ("keras_threads", "keras_processes", "from_generator")


def judge(figures: Figures) -> list[Verdict]:
    """Every bar, in the order of the report."""
    return [verdict(bar, figures) for bar in all_bars()]


def all_bars() -> list[Bar]:
    """The bars, built from the names of their cases."""
    tiny, big = "tiny/loop/", "big/loop/"
    bars = [
        ratio("tiny: processes over torch DataLoader", 5, tiny + "kerasfeed_process", tiny + "torch"),
        ratio(
            "tiny: processes over Keras PyDataset multiprocessing",
            25,
            tiny + "kerasfeed_process",
            tiny + "keras_processes",
        ),
        ratio("tiny: processes over the plain np.stack loop", 0.7, tiny + "kerasfeed_process", tiny + "plain"),
        ratio(
            "tiny: to_tf_dataset over range.map(numpy_function)",
            8,
            tiny + "kerasfeed_tf_process",
            tiny + "range_map",
        ),
        ratio("GIL-bound: 2 processes over one core", 1.9, "gil/loop/kerasfeed_process", "gil/loop/plain"),
    ]
    for workers in (2, 8, 64):
        bars += _waiting_bars(workers)
    bars.append(
        _ideal_bar("waiting, 64 workers: from_indexable over ideal", 0.9, "waiting-64/loop/kerasfeed_scenes", 64)
    )
    bars += [
        ratio("big: processes over the memcpy limit", 0.75, big + "kerasfeed_process", big + "memcpy"),
        ratio("big: threads over the memcpy limit", 0.75, big + "kerasfeed_thread", big + "memcpy"),
        ratio("big: processes over Grain threads", 1, big + "kerasfeed_process", big + "grain_threads"),
        ratio("big: threads over Grain threads", 1, big + "kerasfeed_thread", big + "grain_threads"),
    ]
    for framework in ("torch", "jax"):
        title, ours = f"to_{framework}, processes", f"loop/kerasfeed_{framework}_process"
        bars.append(ratio(f"tiny: {title}, over torch DataLoader", 5, f"tiny/{ours}", tiny + "torch"))
        bars += [_grain_bar(workload, title, ours) for workload in ("tiny", "gil", "big")]
    bars += [_fit_bar(workload) for workload in ("tiny", "gil", "waiting-8", "images", "big")]
    bars.append(
        Bar(
            "first batch from processes, Keras imported",
            FIRST_BATCH_SECONDS,
            False,
            "s",
            lambda figures: (_first_batch(figures), ""),
        )
    )
    bars += [_flat_bar(peer) for peer in ("kerasfeed_process", "kerasfeed_tf_process")]
    return bars + hdf5_bars()


def _waiting_bars(workers: int) -> list[Bar]:
    workload = f"waiting-{workers}"
    paths = [
        ("threads in a loop", 0.95, "loop/kerasfeed_thread"),
        ("processes in a loop", 0.95, "loop/kerasfeed_process"),
        ("to_tf_dataset", 0.9, "loop/kerasfeed_tf_thread"),
        ("fit", 0.9, "fit/kerasfeed_thread"),
    ]
    return [
        _ideal_bar(f"waiting, {workers} workers: {path} over ideal", goal, f"{workload}/{case}", workers)
        for path, goal, case in paths
    ]


def _ideal_bar(title: str, goal: float, name: str, workers: int) -> Bar:
    def measure(figures: Figures) -> tuple[float | None, str]:
        theirs = figures.share_of_ideal("waiting-64/loop/range_map") if workers == 64 else None
        remark = f"range.map with 64 parallel calls: {theirs:.3g} x" if theirs and "tf" in name else ""
        return figures.share_of_ideal(name), remark

    return Bar(title, goal, True, "x", measure)


def _fit_bar(workload: str) -> Bar:
    short = WORKLOADS[workload].title.split(":")[0]
    workers = " 8 workers" if workload == "waiting-8" else ""
    return ratio_to_best(
        f"fit on {short}{workers}: processes over the fastest peer",
        3.0 if workload == "tiny" else NOISE,
        f"{workload}/fit/kerasfeed_process",
        {f"{workload}/fit/{peer}": PEERS[peer].title for peer in FIT_PEERS},
    )


def _grain_bar(workload: str, title: str, ours: str) -> Bar:
    return ratio_to_best(
        f"{WORKLOADS[workload].title.split(':')[0]}: {title}, over Grain's best",
        NOISE,
        f"{workload}/{ours}",
        {f"{workload}/loop/{peer}": PEERS[peer].title for peer in ("grain_threads", "grain_processes")},
    )


def _first_batch(figures: Figures) -> float | None:
    row = figures.find("tiny/loop/kerasfeed_process")
    return row.first_batch.median if row and row.first_batch else None


def _flat_bar(peer: str) -> Bar:
    def measure(figures: Figures) -> tuple[float | None, str]:
        row = figures.find(f"tiny/flat/{peer}")
        if row is None or row.growth_mb is None or row.peak_mb is None:
            return None, ""
        return row.growth_mb.median, f"of {row.peak_mb.median:.0f} MB"

    return Bar(f"memory over 2,000 batches: {PEERS[peer].title}", FLAT_MB, False, "MB", measure)
