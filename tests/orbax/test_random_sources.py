#!/usr/bin/env python3
"""Trees of random arrays that Orbax and TensorStore write are the same arrays in `safetensors`, and,
restored by Orbax, in `orbax`.
"""
import json
import pathlib
import random
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import support  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import orbax_cases  # noqa: E402
import tensorstore  # noqa: E402
import ways  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from etils import epath  # noqa: E402

ARRAYS, TREES, SEED = 300, 6, 20261122
DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
          "float16", "float32", "float64", "complex64", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
V2 = {"bool": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4",
      "uint32": "<u4", "int64": "<i8", "uint64": "<u8", "float16": "<f2", "float32": "<f4",
      "float64": "<f8", "complex64": "<c8"}


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def value(rng, dtype, shape):
    """Random bits; of a bool, zeros and ones."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    data = bytearray(rng.randbytes(count))
    if dtype == np.bool_:
        data = bytearray(byte & 1 for byte in data)
    if rng.random() < 0.3:  # something that compresses
        data[:] = bytes(data[:4]) * (len(data) // 4) + bytes(data[:len(data) % 4])
    return np.frombuffer(bytes(data), dtype).reshape(shape)


def shape_of(rng):
    """Rank 0 to 5, of no more than some thousand elements."""
    shape = []
    for _ in range(rng.randint(0, 5)):
        room = max(1, 3000 // int(np.prod(shape, dtype=np.int64) or 1))
        shape.append(rng.randint(1, min(room, rng.choice([3, 17, 60]))))
    return shape


def codec(name, **configuration):
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


def compression(rng):
    return rng.choice([[], [], [codec("zstd", level=3)], [codec("gzip", level=2)],
                       [codec("crc32c")], [codec("zstd", level=1), codec("crc32c")],
                       [codec("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=4)]])


def bytes_codec(rng, width):
    return codec("bytes", endian=rng.choice(["little"] * 4 + ["big"])) if width > 1 \
        else codec("bytes")


def transposes(rng, rank):
    if rank < 2 or rng.random() < 0.6:
        return []
    return [codec("transpose", order=rng.sample(range(rank), rank))]


def metadata3(rng, shape, dtype):
    rank = len(shape)
    # From a part of the array to two of it and a bit.
    inner = [rng.randint(1, extent + 1) for extent in shape]
    inside = [*transposes(rng, rank), bytes_codec(rng, dtype.itemsize), *compression(rng)]
    if rng.random() < 0.5:
        return {"chunk_grid": codec("regular", chunk_shape=inner), "codecs": inside}
    outside = transposes(rng, rank)
    order = outside[0]["configuration"]["order"] if outside else list(range(rank))
    shard = [size * rng.randint(1, 3) for size in inner]
    index = [codec("bytes", endian="little"), *rng.choice([[], [codec("crc32c")]])]
    sharding = codec("sharding_indexed", chunk_shape=[inner[d] for d in order], codecs=inside,
                     index_codecs=index, index_location=rng.choice(["start", "end"]))
    return {"chunk_grid": codec("regular", chunk_shape=shard), "codecs": [*outside, sharding],
            "chunk_key_encoding": codec(rng.choice(["default", "v2"]),
                                        separator=rng.choice(["/", "."]))}


def metadata2(rng, shape, dtype):
    name = V2.get(dtype.name, dtype.name)
    if dtype.itemsize > 1 and name.startswith("<") and rng.random() < 0.2:
        name = ">" + name[1:]
    compressor = rng.choice([None, None, {"id": "zstd", "level": 3}, {"id": "gzip", "level": 1},
                             {"id": "zlib", "level": 1}, {"id": "bz2", "level": 1},
                             {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1,
                              "blocksize": 0}])
    return {"chunks": [rng.randint(1, extent + 1) for extent in shape], "dtype": name,
            "compressor": compressor, "order": rng.choice("CF") if len(shape) > 1 else "C",
            "dimension_separator": rng.choice("./"), "fill_value": None}


def write_tree(rng, item, names):
    """An item whose arrays TensorStore writes; {name: array}."""
    zarr3, ocdbt = rng.random() < 0.5, rng.random() < 0.7
    ocp.PyTreeCheckpointer(use_ocdbt=ocdbt, use_zarr3=zarr3).save(
        epath.Path(item), {name: np.zeros((1,), np.float32) for name in names})
    metadata = json.loads((item / "_METADATA").read_text())
    metadata["store_array_data_equal_to_fill_value"] = False  # some chunks are never written
    (item / "_METADATA").write_text(json.dumps(metadata))
    if ocdbt:
        shutil.rmtree(item / "d", ignore_errors=True)
        for path in [*item.glob("manifest*"), *item.glob("ocdbt.process_*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    base = {"driver": "file", "path": f"{item}/"}
    config = {"compression": rng.choice([None, {"id": "zstd"}]),
              "max_inline_value_bytes": rng.choice([0, 100, 1024]),
              "max_decoded_node_bytes": rng.choice([400, 2000, 100000000])}
    arrays = {}
    for name in names:
        dtype, shape = dtype_of(rng.choice(DTYPES)), shape_of(rng)
        store = {"driver": "ocdbt", "base": base, "path": f"{name}/", "config": config} \
            if ocdbt else {"driver": "file", "path": f"{item}/{name}/"}
        more = metadata3(rng, shape, dtype) if zarr3 else metadata2(rng, shape, dtype)
        spec = {"driver": "zarr3" if zarr3 else "zarr", "kvstore": store,
                "metadata": {"shape": shape, **more}}
        if zarr3:
            spec["metadata"]["data_type"] = dtype.name
        array = tensorstore.open(spec, create=True, delete_existing=True).result()
        data = value(rng, dtype, shape)
        if shape and rng.random() < 0.2:  # only a part is written, the rest is the fill value
            begin = shape[0] // 2
            zeros = np.zeros_like(data)
            zeros[begin:] = data[begin:]
            data = zeros
            array[begin:].write(data[begin:]).result()
        else:
            array.write(data).result()
        arrays[name] = data
    return arrays


class RandomSources(unittest.TestCase):
    def test_arrays_in_both_views(self):
        rng = random.Random(SEED)
        with tempfile.TemporaryDirectory(prefix="ckfs-orbax-") as work:
            work = pathlib.Path(work)
            for number in range(TREES):
                item = work / f"item{number}"
                names = [f"a{i}" for i in range(ARRAYS // TREES)]
                arrays = write_tree(rng, item, names)
                with self.subTest(seed=SEED, tree=number), ways.mounted(
                        item, work / f"mnt{number}", *rng.choice(ways.READERS),
                        *rng.choice(ways.THREADS), *rng.choice(ways.TILES),
                        "--memory", "64MiB") as mount:
                    self.check_safetensors(arrays, mount / "safetensors")
                    for storage in ("ocdbt", rng.choice(["zarr2", "zarr3"])):
                        view = f"orbax@max_chunk={rng.choice([64, 1000, 1 << 20])}"
                        got = support.arrays(support.by_pytree(
                            mount / f"{view},storage={storage}"))
                        self.assertEqual(set(got), set(arrays))
                        for name, data in arrays.items():
                            self.assertEqual(
                                got[name], (data.dtype.name, list(data.shape), data.tobytes()),
                                f"{view},storage={storage}: {name}")

    def check_safetensors(self, arrays, directory):
        found = {}
        for path in directory.glob("*.safetensors"):
            found |= orbax_cases.safetensors(path)
        self.assertEqual(set(found), set(arrays))
        for name, data in arrays.items():
            self.assertEqual(found[name], (orbax_cases.DTYPES[data.dtype.name], list(data.shape),
                                           data.tobytes()), name)


if __name__ == "__main__":
    unittest.main()
