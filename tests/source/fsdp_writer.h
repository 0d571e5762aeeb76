// Files of FSDP ranks made by hand: state dicts of DTensors and ShardedTensors, as torch pickles
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "source/torch_writer.h"

namespace ckfs::fsdp {

using Fields = std::vector<std::pair<std::string, Opcodes>>;

inline std::string file_name(int world, int rank) {
  return "model_world_size_" + std::to_string(world) + "_rank_" + std::to_string(rank) + ".pt";
}

inline Opcodes ints(const std::vector<std::int64_t>& values) {
  std::vector<Opcodes> items;
  for (const std::int64_t value : values) items.push_back(py_int(value));
  return py_tuple(items);
}

inline Opcodes placement(std::string_view name, const Fields& fields = {}) {
  return py_object("torch.distributed.tensor.placement_types", name, py_dict(fields));
}
inline Opcodes replicate() {
  return placement("Replicate");
}
inline Opcodes shard(std::int64_t dim) {
  return placement("Shard", {{"dim", py_int(dim)}});
}
inline Opcodes strided(std::int64_t dim, std::int64_t split_factor) {
  return placement("_StridedShard", {{"dim", py_int(dim)}, {"split_factor", py_int(split_factor)}});
}

/// A DeviceMesh with these fields.
inline Opcodes mesh_with(const Fields& fields) {
  return py_object("torch.distributed.device_mesh", "DeviceMesh", py_dict(fields));
}

/// As torch 2.13 has it: axes with sizes of their own; one of a single device has none.
inline Opcodes layout(const std::vector<std::int64_t>& shape) {
  std::vector<Opcodes> axes;
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
    const std::vector<std::int64_t> none;
    axes.insert(axes.begin(),
                py_object("torch.distributed._mesh_layout", "_FlatLayout",
                          py_dict({{"shape", ints(shape[i] == 1 ? none : std::vector{shape[i]})},
                                   {"stride", ints(shape[i] == 1 ? none : std::vector{stride})}})));
  }
  return py_object("torch.distributed._mesh_layout", "_MeshLayout",
                   py_dict({{"axes", py_tuple(axes)}}));
}

inline Opcodes mesh(const std::vector<std::int64_t>& shape,
                    const std::vector<std::int64_t>& place) {
  return mesh_with({{"_layout", layout(shape)}, {"_coordinate_on_dim", ints(place)}});
}

/// The ranks from 0 on as a tensor of I32.
inline Opcodes ranks(TorchWriter& torch, const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) bytes += little_endian(static_cast<std::int32_t>(i));
  return torch.tensor("Int", shape, bytes);
}

/// As torch up to 2.8 has it: the shape is that of a tensor of ranks.
inline Opcodes old_mesh(TorchWriter& torch, const std::vector<std::int64_t>& shape,
                        const std::vector<std::int64_t>& place) {
  return mesh_with({{"mesh", ranks(torch, shape)}, {"_coordinate_on_dim", ints(place)}});
}

inline Opcodes spec(const Opcodes& mesh, const std::vector<Opcodes>& placements,
                    const Fields& more = {}) {
  Fields fields{{"mesh", mesh}, {"placements", py_tuple(placements)}};
  fields.insert(fields.end(), more.begin(), more.end());
  return py_object("torch.distributed.tensor._dtensor_spec", "DTensorSpec", py_dict(fields));
}

/// A tensor of a class without storage of its own.
inline Opcodes wrapped(const Opcodes& type, const std::vector<std::int64_t>& shape,
                       const Opcodes& state, std::string_view dtype = "float32") {
  const std::vector<std::int64_t> none;
  return py_global("torch._tensor", "_rebuild_from_type_v2") +
         py_tuple({py_global("torch._utils", "_rebuild_wrapper_subclass"), type,
                   py_tuple({type, py_global("torch", dtype), ints(shape), ints(none), py_int(0),
                             py_none(), py_none(), "\x89"}),
                   state}) +
         "R";
}

inline Opcodes dtensor(const Opcodes& local, const Opcodes& spec,
                       const std::vector<std::int64_t>& shape, std::string_view dtype = "float32") {
  return wrapped(py_global("torch.distributed.tensor", "DTensor"), shape,
                 py_tuple({py_none(), py_dict({{"_local_tensor", local}, {"_spec", spec}})}),
                 dtype);
}

/// The state of an object with slots.
inline Opcodes slots(std::string_view name, const Fields& fields) {
  return py_object("torch.distributed._shard.metadata", name,
                   py_tuple({py_none(), py_dict(fields)}));
}

struct ShardPlace {
  std::vector<std::int64_t> offsets, sizes;
};

inline Opcodes shard_metadata(const ShardPlace& place) {
  return slots("ShardMetadata",
               {{"shard_offsets", py_ints(place.offsets)}, {"shard_sizes", py_ints(place.sizes)}});
}

inline Opcodes local_shard(const Opcodes& tensor, const ShardPlace& place) {
  return slots("Shard", {{"tensor", tensor}, {"metadata", shard_metadata(place)}});
}

inline Opcodes sharded(const std::vector<Opcodes>& local, const std::vector<ShardPlace>& all,
                       const std::vector<std::int64_t>& shape) {
  std::vector<Opcodes> metadata;
  for (const ShardPlace& place : all) metadata.push_back(shard_metadata(place));
  // The class of the process group is what getattr gives: nothing may be called for it.
  const Opcodes group =
      "c__builtin__\ngetattr\n" +
      py_tuple({py_global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"),
                py_str("ProcessGroupState")}) +
      "R)\x81";
  return wrapped(py_global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"), shape,
                 py_tuple({py_list(local),
                           slots("ShardedTensorMetadata", {{"shards_metadata", py_list(metadata)},
                                                           {"size", torch_size(shape)}}),
                           group, py_none(), "\x89"}));
}

/// `count` floats, from `first` on.
inline std::string floats(std::int64_t first, std::int64_t count) {
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    bytes += little_endian(std::bit_cast<std::uint32_t>(static_cast<float>(first + i)));
  }
  return bytes;
}

}  // namespace ckfs::fsdp
