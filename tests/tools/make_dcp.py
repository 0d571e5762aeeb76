#!/usr/bin/env python3
"""Makes a checkpoint of torch.distributed.checkpoint with one F32 tensor, "weight", in many pieces.

    make_dcp.py OUT --pieces N --bytes B [--files F]

The tensor is [N, B / N / 4]; each row is a chunk with a torch file of its own, as DCP saves them, in
one of F .distcp files. The bits of element k are the number k, so that no two are equal.
Needs nothing but Python's standard library.
"""
import argparse
import array
import pathlib
import pickle
import tempfile

import torch_writer

Float32 = torch_writer.global_of("torch", "float32")  # pickles as its name, as a dtype does


class Fields:
    """What a dataclass pickles as: its class and a dictionary."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


def dataclass(name, module="torch.distributed.checkpoint.metadata"):
    return torch_writer.global_of(module, name, (Fields,))


Metadata = dataclass("Metadata")
TensorStorageMetadata = dataclass("TensorStorageMetadata")
ChunkStorageMetadata = dataclass("ChunkStorageMetadata")
TensorProperties = dataclass("TensorProperties")
MetadataIndex = dataclass("MetadataIndex")
StorageInfo = dataclass("_StorageInfo", "torch.distributed.checkpoint.filesystem")


def torch_file(columns):
    """The torch file of a row, and where in it the elements begin."""
    pickler, places = torch_writer.Pickler(), []
    tensor = pickler.tensor([1, columns], name="row")

    def fill(file, _, size):
        places.append(file.tell())
        file.write(bytes(size))

    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "archive"
        torch_writer.write(path, pickler, tensor, fill)
        return bytearray(path.read_bytes()), places[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--pieces", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--files", type=int, default=1)
    arguments = parser.parse_args()
    rows, columns = arguments.pieces, arguments.bytes // arguments.pieces // 4
    arguments.out.mkdir(parents=True)
    blob, begin = torch_file(columns)
    chunks, places, file = [], {}, None
    for row in range(rows):
        name = f"__{row * arguments.files // rows}_0.distcp"
        if file is None or pathlib.Path(file.name).name != name:
            if file is not None:
                file.close()
            file = open(arguments.out / name, "wb")
        numbers = array.array("I", range(row * columns, (row + 1) * columns))
        blob[begin:begin + 4 * columns] = numbers.tobytes()
        places[MetadataIndex(fqn="weight", offset=torch_writer.Size([row, 0]), index=row)] = (
            StorageInfo(relative_path=name, offset=file.tell(), length=len(blob)))
        chunks.append(ChunkStorageMetadata(offsets=torch_writer.Size([row, 0]),
                                           sizes=torch_writer.Size([1, columns])))
        file.write(blob)
    file.close()
    tensor = TensorStorageMetadata(properties=TensorProperties(dtype=Float32),
                                   size=torch_writer.Size([rows, columns]), chunks=chunks)
    metadata = Metadata(state_dict_metadata={"weight": tensor}, planner_data=None,
                        storage_data=places)
    (arguments.out / ".metadata").write_bytes(pickle.dumps(metadata, protocol=2))
    print(f"{arguments.out}: {rows} x {columns} F32 in {rows} pieces")


if __name__ == "__main__":
    main()
