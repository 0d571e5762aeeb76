"""Reads a model's directory as a loader does: every tensor of every shard, against the index."""
import json
import pathlib

from safetensors import safe_open


def read_model(directory):
    """{name: tensor}. Fails unless the index, if there is one, and the files agree."""
    directory = pathlib.Path(directory)
    index = directory / "model.safetensors.index.json"
    if index.exists():
        place = json.loads(index.read_text())["weight_map"]
        files = sorted(set(place.values()))
    else:
        place, files = None, ["model.safetensors"]
    found = {}
    for name in files:
        with safe_open(directory / name, "pt") as shard:
            for tensor in shard.keys():
                assert place is None or place[tensor] == name, tensor
                found[tensor] = shard.get_tensor(tensor)
    assert found and (place is None or set(place) == set(found))
    shards = {path.name for path in directory.glob("*.safetensors")}
    assert shards == set(files), shards ^ set(files)
    return found
