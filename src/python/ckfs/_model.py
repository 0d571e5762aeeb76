"""A view as a Mapping from names to tensors. Nothing is read before a tensor's bytes are asked for."""
from __future__ import annotations

import collections
import collections.abc
import ctypes
import io
import itertools
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import _native, dtypes, errors
from ._native import TASK
from ._programs import show_fetcher
from ._progress import follow

Progress = Union[None, bool, Callable[[int, int], None]]


class File(NamedTuple):
    """A file of a view. `size` is in bytes; `exactness` that of its least exact tensor."""

    path: str
    size: int
    tensors: int
    exactness: str


class LoadResult(NamedTuple):
    """What load_into() did not find: as torch's load_state_dict() gives it."""

    missing_keys: List[str]
    unexpected_keys: List[str]


# Tensors as they are stored, codes decoded: of a source that is no directory of safetensors, and of one.
_AS_STORED = ("safetensors", "bf16-safetensors@cast=quantized", "bf16-safetensors")


def open(source: Union[str, os.PathLike], view: Optional[str] = None, **options: Any) -> "Model":
    """Opens a view of a checkpoint.

    source: a directory, a file, a model of the hub's cache ("org/name"), or a location
        ("hf://org/name@revision", "https://…", "s3://…", "gs://…").
    view: a view's name, with or without parameters: "fp32-safetensors", "bf16-safetensors@cast=all".
        None: each tensor in the dtype that it is stored in, and quantized ones as BF16.
    options: those of `ckfs mount -o` that say what is opened, and how: memory="4GiB", tag=, key=,
        item=, step=, config=, family=, recipe=, spill=, threads=, io=, strict=, offline=, …; and
        budget=, a Budget that it shares with other sources.

    Reads headers only. Raises NotFoundError, CorruptError, UnsupportedError (the source cannot give
    the view: the text says why), InvalidArgumentError, IoError.
    """
    return Checkpoint(source, **options).view(view)


_numbers = itertools.count(1)


class Budget:
    """Memory that several sources share, for buffers and caches: together they hold no more than one
    alone would.

    memory: a size, as "4GiB"; by default a quarter of the control group's limit, or 1 GiB.
    for_servers: how much of it is set apart for sources on other machines: each takes a quarter of
        `memory`, but between 16 and 256 MiB. Without it such a source is not opened. These bytes are
        not counted in `held` and `peak`.

    Raises InvalidArgumentError (less than 64 MiB are left for the rest; less than one such source takes).
    In a process that was forked, sources are not opened with a budget of the parent's.
    """

    def __init__(self, memory: Union[None, int, str] = None, for_servers: Union[None, int, str] = None):
        self._number = next(_numbers)
        self._handle = _native.Handle("ckfs_budget_free")
        _native.check(_native.library.ckfs_budget_new(
            _native.options({"memory": memory, "for_servers": for_servers}),
            ctypes.byref(self._handle.pointer)))

    def _held(self) -> Tuple[int, int]:
        held, peak = _native.c_u64(), _native.c_u64()
        _native.library.ckfs_budget_held(self._handle.pointer, ctypes.byref(held), ctypes.byref(peak))
        return held.value, peak.value

    @property
    def held(self) -> int:
        """Bytes in use now, or kept for reuse."""
        return self._held()[0]

    @property
    def peak(self) -> int:
        """The most bytes that ever were in use, or kept for reuse."""
        return self._held()[1]

    def __repr__(self) -> str:
        return f"<ckfs.Budget {self._number}>"  # caches of models know it by this


class Checkpoint:
    """A source whose headers have been read; its views share a budget of memory."""

    def __init__(self, source: Union[str, os.PathLike], *, budget: Optional[Budget] = None, **options: Any):
        self.source = os.fspath(source)
        if "://" in os.fsdecode(self.source):
            show_fetcher()
        self._handle = _native.Handle("ckfs_close")
        words = [os.fsencode(self.source), _native.options(options), TASK, ctypes.byref(self._handle.pointer)]
        if budget is not None and not isinstance(budget, Budget):
            raise errors.InvalidArgumentError(
                f"budget: a ckfs.Budget is wanted, not {type(budget).__name__} (memory= takes a size)")
        if budget is None:
            _native.call("ckfs_open", *words)
        else:
            _native.call("ckfs_open_with", budget._handle.pointer, *words)

    def view(self, name: Optional[str] = None) -> "Model":
        """The view of that name, or as open() chooses one. Raises NotFoundError, UnsupportedError,
        InvalidArgumentError."""
        if name is not None:
            return Model(self, name)
        for candidate in _AS_STORED[:-1]:
            try:
                return Model(self, candidate)
            except (errors.UnsupportedError, errors.InvalidArgumentError):
                continue
        return Model(self, _AS_STORED[-1])

    def views(self) -> Dict[str, bool]:
        """Whether each view that ckfs knows is available of this source, by name."""
        return {view["name"]: view["available"] for view in self.inspect()["views"]}

    def inspect(self) -> dict:
        """What `ckfs inspect --json` prints."""
        return self._report("inspect")

    def statistics(self) -> dict:
        """What was read so far: as `.ckfs/status.json` of a mount, in bytes and events."""
        return self._report("status")

    def _report(self, what: str, view: Optional[str] = None) -> dict:
        buffer = _native.Buffer()
        _native.check(_native.library.ckfs_report(
            self._handle.pointer, what.encode(), None if view is None else os.fsencode(view),
            ctypes.byref(buffer)))
        return _native.take_json(buffer)

    def __repr__(self) -> str:
        return f"ckfs.Checkpoint({self.source!r})"


class Tensor:
    """A tensor of a view, or rows of one. Its bytes are read when they are asked for, each time anew.

    name, dtype (safetensors' name: "BF16"), shape (a tuple), nbytes, exactness ("bit-exact", "exact",
    "lossy"), file (the path, in the view, of the first file that has a part of it).

    tensor[10:20] is the tensor of these rows (indices of the first dimension), tensor[3] that of one:
    no other row is read.
    """

    __slots__ = ("name", "dtype", "shape", "nbytes", "exactness", "_model", "_index", "_file",
                 "_first", "_rows")

    def __init__(self, model: "Model", index: int, name: str, info: _native.TensorInfo):
        self.name = name
        self.dtype = str(info.dtype)
        self.shape = tuple(info.shape[:info.dimensions])
        self.nbytes = info.size
        self.exactness = _native.EXACTNESS[info.exactness]
        self._model, self._index, self._file = model, index, info.file
        self._first, self._rows = 0, _native.ALL_ROWS

    @property
    def file(self) -> str:
        return self._model._file_info(self._file).path

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.name}: a scalar has no length")
        return self.shape[0]

    def __getitem__(self, rows: Union[int, slice]) -> "Tensor":
        if not self.shape:
            raise errors.InvalidArgumentError(f"{self.name}: a scalar has no rows")
        count = self.shape[0]
        if isinstance(rows, slice):
            first, last, step = rows.indices(count)
            if step != 1:
                raise errors.InvalidArgumentError(
                    f"{self.name}: rows are read one after another (step {step}: take it of the array)")
            return self._part(first, max(0, last - first), (max(0, last - first), *self.shape[1:]))
        try:
            row = rows.__index__()
        except AttributeError:
            raise TypeError(f"{self.name}: rows are a number or a slice, not {type(rows).__name__} "
                            "(index the array for more)") from None
        if not -count <= row < count:
            raise IndexError(f"{self.name}: row {row} (the tensor has {count})")
        return self._part(row % count, 1, self.shape[1:])

    def _part(self, first: int, rows: int, shape: Tuple[int, ...]) -> "Tensor":
        if self._rows != _native.ALL_ROWS and len(self.shape) < self._model._tensor_ndim(self._index):
            raise errors.InvalidArgumentError(
                f"{self.name}: rows of one row (index the array for more)")
        bits = dtypes.bits(self.dtype)
        for size in shape:
            bits *= size
        if bits % 8:
            raise errors.InvalidArgumentError(f"{self.name}: these rows end within a byte")
        part = object.__new__(Tensor)
        for slot in Tensor.__slots__:
            setattr(part, slot, getattr(self, slot))
        part.shape, part.nbytes = shape, bits // 8
        part._first, part._rows = self._first + first, rows
        return part

    def into(self, buffer: Any) -> None:
        """Reads the bytes into `buffer`, which has nbytes of them: anything with a writable buffer
        (bytearray, memoryview, numpy array, mmap), or a contiguous torch tensor of the CPU. Row-major,
        little-endian. Raises InvalidArgumentError (another size)."""
        address, size, owner = _place(buffer, self.name)
        self._model._read([(self, address, size)])
        del owner

    def tobytes(self) -> bytes:
        """The bytes, row-major and little-endian."""
        out = bytearray(self.nbytes)
        self.into(out)
        return bytes(out)

    def numpy(self, codes: bool = False):
        """A new numpy array. BF16 and F8 need the package ml_dtypes; with `codes` they are unsigned
        integers of as many bits, as they are stored."""
        import numpy

        out = numpy.empty(self.shape, dtypes.numpy_dtype(self.dtype, codes))
        self._model._read([(self, out.ctypes.data, out.nbytes)])
        return out

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError(f"{self.name}: to read a tensor is to copy it")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def torch(self, device: Any = None, pin_memory: bool = False):
        """A new torch tensor; on `device`, if one is named."""
        out = _torch_place(self, pin_memory)
        self._model._read([(self, out.data_ptr(), self.nbytes)])
        return out if device is None else out.to(device)

    def jax(self):
        """A new jax array on the default device. Raises UnsupportedError for 64 bits where jax has
        them switched off, which would make 32 of them."""
        import jax.numpy

        array = self.numpy()
        out = jax.numpy.asarray(array)
        if out.dtype != array.dtype:
            raise errors.UnsupportedError(
                f"{self.name}: jax makes {out.dtype} of {array.dtype} "
                "(jax.config.update(\"jax_enable_x64\", True), or numpy())")
        return out

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        from . import _dlpack

        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self.name}: is read to the CPU (device {dl_device})")
        if copy is False:
            raise BufferError(f"{self.name}: to read a tensor is to copy it")
        return _dlpack.capsule(self)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return 1, 0  # the CPU

    def __repr__(self) -> str:
        return f"<ckfs.Tensor {self.name!r} {self.dtype} {list(self.shape)} {self.exactness}>"


def _torch_place(tensor: Tensor, pin_memory: bool = False):
    import torch

    return torch.empty(dtypes.torch_shape(tensor.dtype, tensor.shape),
                       dtype=dtypes.torch_dtype(tensor.dtype), pin_memory=pin_memory)


def _place(buffer: Any, name: str) -> Tuple[int, int, Any]:
    """Address and size of memory to write to, and what keeps it where it is."""
    if hasattr(buffer, "data_ptr"):  # torch
        if not _has_plain_bytes(buffer):
            raise errors.InvalidArgumentError(
                f"{name}: the place is not a contiguous tensor of the CPU")
        return buffer.data_ptr(), buffer.numel() * buffer.element_size(), buffer
    wrong = errors.InvalidArgumentError(f"{name}: the place is not writable and contiguous")
    interface = getattr(buffer, "__array_interface__", None)
    if interface is not None:  # numpy, whose arrays of ml_dtypes are no buffers
        address, is_readonly = interface["data"]
        if is_readonly or interface.get("strides") is not None:
            raise wrong
        return address, buffer.nbytes, buffer
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise wrong
    if view.nbytes == 0:
        return 0, 0, view
    held = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(held), view.nbytes, held


def _has_plain_bytes(place: Any) -> bool:
    """Whether a torch tensor is what its memory says, row by row: it is not on another device, no view
    with strides or a conjugation that is still to be done, no parts elsewhere (a DTensor, a sparse or
    quantized tensor)."""
    import torch

    if place.device.type != "cpu" or place.layout != torch.strided or place.is_quantized:
        return False
    if not place.is_contiguous() or place.is_conj() or place.is_neg():
        return False
    try:
        return place.numel() == 0 or place.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # of a subclass without memory of its own
        return False


class Model(collections.abc.Mapping):
    """The tensors of a view by name, in the order of its files; and its files.

    A name begins with its folder ("transformer/…") where the view has several models. A Model may be
    used by several threads at once. In a process that was forked it raises InvalidArgumentError: open
    the source again there.
    """

    def __init__(self, checkpoint: Checkpoint, view: str):
        self._handle = _native.Handle("ckfs_view_close")
        _native.call("ckfs_view_open", checkpoint._handle.pointer, os.fsencode(view), TASK,
                     ctypes.byref(self._handle.pointer))
        info = _native.ViewInfo()
        self._check("ckfs_view_describe", ctypes.byref(info))
        self.checkpoint: Optional[Checkpoint] = checkpoint
        self.view: str = str(info.name)
        self.source: str = checkpoint.source
        self._tensors, self._files = info.tensors, info.files

    def _check(self, name: str, *arguments: Any) -> None:
        handle = self._handle
        if handle is None:
            raise errors.InvalidArgumentError(f"{self.view}: closed")
        _native.check(getattr(_native.library, name)(handle.pointer, *arguments))

    # The Mapping.

    def __getitem__(self, name: str) -> Tensor:
        """Raises TensorNotFoundError (a KeyError)."""
        if not isinstance(name, str):
            raise TypeError(f"names of tensors are str, not {type(name).__name__}")
        key = name.encode(errors="surrogateescape")
        index = _native.c_u64()
        try:
            self._check("ckfs_find_tensor", key, len(key), ctypes.byref(index))
        except errors.NotFoundError as error:
            raise errors.TensorNotFoundError(error.message) from None
        return self._tensor(index.value)

    def _tensor_info(self, index: int) -> _native.TensorInfo:
        info = _native.TensorInfo()
        self._check("ckfs_tensor_describe", index, ctypes.byref(info))
        return info

    def _tensor_ndim(self, index: int) -> int:
        return self._tensor_info(index).dimensions

    def _tensor(self, index: int) -> Tensor:
        info = self._tensor_info(index)
        return Tensor(self, index, str(info.folder) + str(info.name), info)

    def __iter__(self) -> Iterator[str]:
        for index in range(self._tensors):
            info = self._tensor_info(index)
            yield str(info.folder) + str(info.name)

    def __len__(self) -> int:
        return self._tensors

    def __contains__(self, name: object) -> bool:
        try:
            self[name]  # type: ignore[index]
        except (KeyError, TypeError):
            return False
        return True

    def items(self):
        """Pairs of names and Tensors, of which nothing is read."""
        return _Items(self)

    def values(self):
        """The Tensors, of which nothing is read."""
        return _Values(self)

    # Many tensors.

    def _read(self, reads: List[Tuple[Tensor, int, int]], jobs: int = 0,
              progress: Progress = None, task: Optional[_native.Handle] = None) -> None:
        handle = self._handle
        if handle is None:
            raise errors.InvalidArgumentError(f"{self.view}: closed")
        array = (_native.TensorRead * len(reads))(
            *((tensor._index, tensor._first, tensor._rows, address, size)
              for tensor, address, size in reads))
        with follow(progress, "read") as told:
            _native.call("ckfs_read_tensors", handle.pointer, array, len(reads), jobs, TASK,
                         progress=told, task=task)

    def read_into(self, places: collections.abc.Mapping, *, jobs: int = 0,
                  progress: Progress = None) -> None:
        """Reads tensors into buffers (as Tensor.into()), `{name: buffer}`, by several threads, in the
        order of the view's files: the fastest way."""
        reads, owners = [], []
        for name, buffer in places.items():
            tensor = self[name]
            address, size, owner = _place(buffer, name)
            reads.append((tensor, address, size))
            owners.append(owner)
        self._read(reads, jobs, progress)
        del owners

    def iter_torch(self, names: Optional[Iterable[str]] = None, *, ahead: int = 256 << 20,
                   jobs: int = 0) -> Iterator[Tuple[str, Any]]:
        """Yields pairs of names and torch tensors, in the order of the view's files or of `names`.
        While the caller uses some, the next are read: about `ahead` bytes of them. When the loop ends
        early, so does reading."""
        import concurrent.futures

        def batches():
            batch, size = [], 0
            for name in (self if names is None else names):
                tensor = self[name]
                batch.append(tensor)
                size += tensor.nbytes
                if size >= ahead:
                    yield batch
                    batch, size = [], 0
            if batch:
                yield batch

        def read(batch, task):
            places = [_torch_place(tensor) for tensor in batch]
            self._read([(tensor, place.data_ptr(), tensor.nbytes)
                        for tensor, place in zip(batch, places)], jobs, task=task)
            return [(tensor.name, place) for tensor, place in zip(batch, places)]

        reader = concurrent.futures.ThreadPoolExecutor(1)
        waiting: collections.deque = collections.deque()  # with the task of each

        def first():
            result = waiting[0][0].result()  # stays in line: an interrupt while it is waited for stops it
            waiting.popleft()
            return result

        try:
            for batch in batches():
                task = _native.new_task()
                waiting.append((reader.submit(read, batch, task), task))
                if len(waiting) > 1:
                    yield from first()
            while waiting:
                yield from first()
        finally:
            for _, task in waiting:
                _native.library.ckfs_task_stop(task.pointer)
            reader.shutdown(cancel_futures=True)

    def load_into(self, target: Any, *, strict: bool = True, jobs: int = 0,
                  progress: Progress = None) -> LoadResult:
        """Fills the parameters and buffers of a torch module, or the tensors of a dict by name.

        Where dtypes are equal, bytes go straight to their places; otherwise, and for places on another
        device, tensors are read ahead and copied, as torch's load_state_dict() does it. With `strict`, names of the target that the view
        does not have, or the other way round, are an error, before anything is read. (A tensor that
        shares its memory with one that is there is not missing.) Shapes must be equal. Raises
        InvalidArgumentError; those of reading.
        """
        import torch

        wanted: Dict[str, Any] = (target.state_dict(keep_vars=True) if hasattr(target, "state_dict")
                                  else dict(target))
        found = {name: place for name, place in wanted.items() if name in self}
        for name, place in found.items():
            if not isinstance(place, torch.Tensor):
                raise errors.InvalidArgumentError(
                    f"{name}: the target is a {type(place).__name__}, not a torch tensor")
        filled = {_memory_of(place) for place in found.values()} - {None}
        missing = [name for name, place in wanted.items()
                   if name not in found and _memory_of(place) not in filled]
        unexpected = [name for name in self if name not in wanted]
        if strict and (missing or unexpected):
            raise errors.InvalidArgumentError(
                f"{self.view}: names differ: {_some('missing', missing)}"
                f"{'; ' if missing and unexpected else ''}{_some('unexpected', unexpected)} "
                "(strict=False loads what is in both)")
        # Of one place under two names the last counts, as in torch.
        last = {_memory_of(place) or name: name for name, place in found.items()}
        direct, copied = [], []
        for name in last.values():
            place = found[name]
            tensor = self[name]
            if place.device.type == "meta":
                raise errors.InvalidArgumentError(
                    f"{name}: the target has no memory (module.to_empty(device=\"cpu\") gives it some)")
            if tuple(place.shape) != tuple(dtypes.torch_shape(tensor.dtype, tensor.shape)):
                raise errors.InvalidArgumentError(
                    f"{name}: shape {list(tensor.shape)} does not fit {list(place.shape)}")
            same = place.dtype == dtypes.torch_dtype(tensor.dtype) and _has_plain_bytes(place)
            (direct if same else copied).append((tensor, place))
        copied.sort(key=lambda pair: pair[0]._index)
        with torch.no_grad():
            self._read([(tensor, place.data_ptr(), tensor.nbytes) for tensor, place in direct], jobs,
                       progress)
            names = [tensor.name for tensor, _ in copied]
            values = self.iter_torch(names, ahead=_CAST_AHEAD, jobs=jobs)
            for (_, value), (_, place) in zip(values, copied):
                place.copy_(value)
        return LoadResult(missing, unexpected)

    # Files.

    def _file_info(self, index: int) -> File:
        info = _native.FileInfo()
        self._check("ckfs_file_describe", index, ctypes.byref(info))
        return File(str(info.path), info.size, info.tensors, _native.EXACTNESS[info.exactness])

    def files(self) -> List[File]:
        """The files of the view, by path."""
        return [self._file_info(index) for index in range(self._files)]

    def open_file(self, path: str, buffering: int = 1 << 20) -> io.BufferedReader:
        """Opens a file of the view for reading, as the builtin open(path, "rb") does. Raises
        NotFoundError."""
        key = os.fsencode(path)
        index = _native.c_u64()
        self._check("ckfs_find_file", key, len(key), ctypes.byref(index))
        return io.BufferedReader(_RawFile(self, index.value), buffering)

    # Copies.

    def export(self, out: Union[str, os.PathLike], *, jobs: int = 0, force: bool = False,
               progress: Progress = None) -> dict:
        """Writes the files of the view to a directory, as `ckfs export` does: a run that was
        interrupted is continued. Gives what `ckfs export --json` prints."""
        return self._work("ckfs_export", [os.fsencode(out)], {"jobs": jobs, "force": force}, progress)

    def verify(self, copy: Union[str, os.PathLike], *, jobs: int = 0, sample: float = 1,
               resume: Optional[str] = None, progress: Progress = None) -> dict:
        """Compares a directory with the view, byte for byte, or a share of it. Gives what
        `ckfs verify --json` prints: `equal`, `differences`, …"""
        return self._work("ckfs_verify", [os.fsencode(copy)],
                          {"jobs": jobs, "sample": sample, "resume": resume}, progress)

    def digest(self, *algorithms: str, jobs: int = 0, progress: Progress = None) -> Dict[str, dict]:
        """Digests of the files of the view, by path: `{"config.json": {"sha256": "…"}}`. Algorithms
        are "sha256" (the default), "crc32c", "xxh128"."""
        told = self._work("ckfs_digest", [], {"algorithm": list(algorithms), "jobs": jobs}, progress)
        names = algorithms or ("sha256",)
        return {file["path"]: {name: file[name] for name in names} for file in told["files"]}

    def _work(self, name: str, arguments: list, options: dict, progress: Progress) -> dict:
        handle = self._handle
        if handle is None:
            raise errors.InvalidArgumentError(f"{self.view}: closed")
        buffer = _native.Buffer()
        with follow(progress, name[len("ckfs_"):]) as told:
            _native.call(name, handle.pointer, *arguments, _native.options(options), TASK,
                         ctypes.byref(buffer), progress=told)
        return _native.take_json(buffer)

    def describe(self) -> dict:
        """What `ckfs inspect --view VIEW --json` prints: every tensor with those of the source that it
        is made of."""
        if self.checkpoint is None:
            raise errors.InvalidArgumentError(f"{self.view}: closed")
        return self.checkpoint._report("view", self.view)

    def close(self) -> None:
        """Gives back memory, when reads that are under way have ended. Later reads raise
        InvalidArgumentError."""
        self._handle = None  # type: ignore[assignment]
        self.checkpoint = None

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __reduce__(self):
        raise TypeError("a ckfs.Model belongs to its process: send the source and the view")

    def __repr__(self) -> str:
        return f"<ckfs.Model {self.source!r} {self.view!r}: {self._tensors} tensors, {self._files} files>"


# Bytes that are read ahead of casts and of copies to a device.
_CAST_AHEAD = 64 << 20


def _memory_of(place: Any) -> Optional[tuple]:
    """What two names of one tensor share; None: the place has no memory of its own."""
    try:
        where = place.untyped_storage().data_ptr()
        if not where or not place.numel():
            return None
        return (str(place.device), place.data_ptr(), place.dtype, tuple(place.shape), place.stride())
    except (AttributeError, RuntimeError, NotImplementedError):
        return None


def _some(word: str, names: List[str]) -> str:
    if not names:
        return ""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{word} {', '.join(names[:3])}{rest}"


class _Items(collections.abc.ItemsView):
    def __iter__(self):
        model: Model = self._mapping  # type: ignore[assignment]
        for index in range(len(model)):
            tensor = model._tensor(index)
            yield tensor.name, tensor


class _Values(collections.abc.ValuesView):
    def __iter__(self):
        model: Model = self._mapping  # type: ignore[assignment]
        for index in range(len(model)):
            yield model._tensor(index)


class _RawFile(io.RawIOBase):
    """A file of a view for one reader, whose next bytes are computed ahead of it."""

    def __init__(self, model: Model, index: int):
        super().__init__()
        self._handle = _native.Handle("ckfs_file_close")
        model._check("ckfs_file_open", index, ctypes.byref(self._handle.pointer))
        info = model._file_info(index)
        self.name, self._size, self._at = info.path, info.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self.name}: seek to {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        address, size, owner = _place(buffer, self.name)
        if size == 0:
            return 0
        got = _native.c_u64()
        _native.call("ckfs_file_read", self._handle.pointer, self._at, address, size, TASK,
                     ctypes.byref(got))
        del owner
        self._at += got.value
        return got.value
