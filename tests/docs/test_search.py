"""Readers find pages by the words that they type into the search of the site."""

import json
import re
import subprocess
import sys
from urllib.parse import urldefrag

import pytest
from places import ROOT
from waits import PROGRAM_SECONDS

# What a reader types, and the pages of which one must be among the first three.
WORDS = {
    "augmentation": "how-to/augment",
    "albumentations": "how-to/augment",
    "torchvision": "how-to/augment",
    "mixup": "how-to/mixup",
    "checkpoint": "how-to/resume",
    "resume training": "how-to/resume",
    "install": "start",
    "oversampling": "how-to/balance",
    "imbalanced": "how-to/balance",
    "class_weight": "how-to/balance",
    "filter": "understand/sequences",
    "lmdb": "how-to/many-scenes-a-file",
    "webdataset": "how-to/many-scenes-a-file",
    "parquet": "how-to/many-scenes-a-file",
    "csv": "how-to/many-scenes-a-file",
    "huggingface": "how-to/jax-and-pytorch",
    "flax": "how-to/jax-and-pytorch",
    "slow training": "how-to/find-the-bottleneck",
    "bottleneck": "how-to/find-the-bottleneck",
    "medical images": "how-to/patches",
    "patches": "how-to/patches",
    "sliding window": "how-to/windows",
    "time series": "how-to/windows",
    "multi worker": "how-to/several-hosts",
    "MirroredStrategy": "how-to/several-devices",
    "memory leak": "understand/memory",
    "segmentation fault": "understand/faults",
    "deadlock": "start/messages",
    "h5py objects cannot be pickled": "start/messages",
    "Too many open files": "start/messages",
    "ran out of data": "start/messages",
    "HDF5Matrix": "start/messages",
    "OrderedEnqueuer": "start/messages",
    "CUDA_VISIBLE_DEVICES": "understand/workers",
    "netcdf": "how-to/netcdf",
    "matlab": "how-to/netcdf",
    "zarr": "how-to/netcdf",
    "xarray": "how-to/netcdf",
    "cross-validation": "how-to/cross-validation",
    "train test split": "how-to/cross-validation",
    "shuffle": "understand/orders",
    "seed": "understand/reproducibility",
    "padding": "understand/collation",
    "ragged": "understand/collation",
    "point cloud": "how-to/point-clouds",
    "tfrecord": "how-to/tfrecords",
    "s3": "how-to/object-store",
    "fit_generator": "how-to/from-sequence",
    "DataLoader": "how-to/from-pytorch",
    "lightning": "how-to/lightning",
    "from_generator": "how-to/from-tf-data",
    "ray": "how-to/cluster",
    "nan": "how-to/find-nan",
    "grain": "understand/comparison",
}


def ranking(content):
    """Return a function from a query to pages, best first, for the search index of a site.

    It ranks as Material's search does in a browser: lunr scores each section with the boosts of the index, a word also
    stands for the beginning of a longer one, and whole pages and sections with all words count more.
    """
    lunr = pytest.importorskip("lunr", reason="needs lunr (pip install kerasfeed[docs])")
    separator = re.compile(content["config"]["separator"])

    def words(text):
        return [word.lower() for part in re.split("<[^>]*>", text) for word in separator.split(part) if word]

    builder = lunr.get_default_builder()
    builder.pipeline.reset()
    builder.search_pipeline.reset()
    builder.b(0)
    builder.ref("location")
    for name, options in content["config"]["fields"].items():
        builder.field(name, boost=options["boost"])
    for section in content["docs"]:
        document = {name: words(section.get(name, "")) for name in content["config"]["fields"]}
        builder.add({"location": section["location"], **document}, {"boost": section.get("boost", 1)})
    index = builder.build()

    def find(query):
        terms = set(words(query))
        scored = []
        for hit in index.search(" ".join(f"{term}*" for term in terms)):
            matched = [term for term in terms if any(found.startswith(term) for found in hit["match_data"].metadata)]
            boost = ("#" not in hit["ref"]) + len(matched) / len(terms)
            scored.append((hit["score"] * (1 + boost**2), hit["ref"]))
        best_first = [urldefrag(ref).url.rstrip("/") for _, ref in sorted(scored, reverse=True)]
        return list(dict.fromkeys(best_first))

    return find


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """The search of the built site."""
    pytest.importorskip("mkdocs", reason="needs mkdocs (pip install kerasfeed[docs])")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PROGRAM_SECONDS)
    return ranking(json.loads((site / "search" / "search_index.json").read_text()))


@pytest.mark.heavy
def test_a_page_is_found_by_the_words_for_it(search):
    assert len(WORDS) >= 50
    found = {query: search(query)[:3] for query in WORDS}
    assert {query: pages for query, pages in found.items() if WORDS[query] not in pages} == {}
