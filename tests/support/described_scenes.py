"""Descriptions of sequences without workers, with the parts that must not depend on workers."""

import json

import kerasfeed as kf


def described(sequence, *rest, **more):
    return kf.describe(sequence, *rest, **{"workers": 0, "progress": False, **more})


def facts(description):
    found = description.to_dict()
    del found["timing"]
    return json.dumps(found)
