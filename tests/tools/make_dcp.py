#!/usr/bin/env python3
"""Makes a checkpoint of torch.distributed.checkpoint with F32 tensors in many pieces.

    make_dcp.py OUT --pieces N --bytes B [--files F] [--tensors T]

Each of the tensors ("weight", or "layers.0.weight"...) is [N, B / T / N / 4]; each row is a chunk with
a torch file of its own, as DCP saves them, in one of F .distcp files. The bits of element k of all
are the number k, so that no two are equal.
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
TensorProperties = torch_writer.global_of("torch.distributed.checkpoint.metadata", "TensorProperties",
                                          __getstate__=lambda self: PROPERTIES)
MetadataIndex = dataclass("MetadataIndex")
Encoding = torch_writer.global_of("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING",
                                  __reduce__=lambda self: (Encoding, (0,)))
GetLayout = torch_writer.global_of("torch.serialization", "_get_layout",
                                   __reduce__=lambda self: (GetLayout, ("torch.strided",)))
PROPERTIES = (Float32, GetLayout(), False, Encoding(), False)  # dtype, layout, ..., memory format
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
    parser.add_argument("--tensors", type=int, default=1)
    arguments = parser.parse_args()
    rows = arguments.pieces
    columns = arguments.bytes // arguments.tensors // rows // 4
    names = [f"layers.{number}.weight" for number in range(arguments.tensors)]
    if arguments.tensors == 1:
        names = ["weight"]
    arguments.out.mkdir(parents=True)
    blob, begin = torch_file(columns)
    chunks, places, file = {name: [] for name in names}, {}, None
    for row in range(rows):
        path = f"__{row * arguments.files // rows}_0.distcp"
        if file is None or pathlib.Path(file.name).name != path:
            if file is not None:
                file.close()
            file = open(arguments.out / path, "wb")
        for number, name in enumerate(names):
            first = (number * rows + row) * columns
            numbers = array.array("I", range(first, first + columns))
            blob[begin:begin + 4 * columns] = numbers.tobytes()
            # As from a rank of its own: no two share a string.
            name, path = "".join(name), "".join(path)
            places[MetadataIndex(fqn=name, offset=torch_writer.Size([row, 0]), index=row)] = (
                StorageInfo(relative_path=path, offset=file.tell(), length=len(blob)))
            chunks[name].append(ChunkStorageMetadata(offsets=torch_writer.Size([row, 0]),
                                                     sizes=torch_writer.Size([1, columns])))
            file.write(blob)
    file.close()
    tensors = {name: TensorStorageMetadata(properties=TensorProperties(),
                                           size=torch_writer.Size([rows, columns]),
                                           chunks=chunks[name]) for name in names}
    metadata = Metadata(state_dict_metadata=tensors, planner_data=None, storage_data=places)
    with open(arguments.out / ".metadata", "wb") as out:
        pickle.dump(metadata, out)
    print(f"{arguments.out}: {len(names)} x {rows} x {columns} F32 in {len(names) * rows} pieces")


if __name__ == "__main__":
    main()
