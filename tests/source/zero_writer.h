// ZeRO checkpoints of any shape, made as DeepSpeed makes them: for worlds, groups and paddings that
// no fixture has, and for broken ones, by changing a part of one before it is written.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "source/torch_writer.h"
#include "support/temporary_directory.h"

namespace ckfs {

struct ZeroParameter {
  std::string name;
  std::vector<std::int64_t> shape;

  std::int64_t numel() const {
    std::int64_t numel = 1;
    for (const std::int64_t extent : shape) numel *= extent;
    return numel;
  }
};

/// How ranks of stages 1 and 2 trim the padding at the end of a group.
enum class ZeroTrim { EveryRank, LastRank, None };

struct ZeroRun {
  int stage = 2;
  std::int64_t world = 2;
  std::vector<std::vector<ZeroParameter>> groups;
  ZeroTrim trim = ZeroTrim::EveryRank;
  std::int64_t alignment = 1;  // elements, of each parameter but a group's last
  std::map<std::string, std::string> shared;
};

/// A float whose bits no other element of the run has.
inline std::string element_bytes(std::uint32_t number) {
  return little_endian(number);
}

class ZeroWriter {
 public:
  explicit ZeroWriter(ZeroRun run) : run_(std::move(run)) {
    std::uint32_t next = 1;
    for (const auto& group : run_.groups) {
      for (const ZeroParameter& parameter : group) {
        std::string& bytes = values_[parameter.name];
        for (std::int64_t i = 0; i < parameter.numel(); ++i) bytes += element_bytes(next++);
      }
    }
  }

  /// The bytes that parameter has.
  const std::string& value(const std::string& name) const { return values_.at(name); }

  std::string optimizer_file(std::int64_t rank) const {
    TorchWriter torch;
    // The moments come first, and must never be taken for the masters.
    std::vector<Opcodes> moments, groups, paddings;
    for (const auto& group : run_.groups) {
      const std::string bytes = run_.stage == 3 ? sharded(group, rank) : flat(group, rank);
      const auto numel = static_cast<std::int64_t>(bytes.size() / 4);
      moments.push_back(torch.tensor("Float", {numel}, std::string(bytes.size(), '\xee')));
      // A view, as DeepSpeed saves it: the storage is longer than the group.
      groups.push_back(torch.strided("Float", {numel}, {1}, 3, numel + 5,
                                     std::string(12, '\xdd') + bytes + std::string(8, '\xdd')));
      std::vector<std::int64_t> behind;
      for (std::size_t i = 0; i < group.size(); ++i) behind.push_back(padding(group, i));
      paddings.push_back(py_ints(behind));
    }
    std::vector<std::pair<std::string, Opcodes>> states = {
        {"base_optimizer_state", py_list(moments)},
        {"zero_stage", py_int(run_.stage)},
        {run_.stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups", py_list(groups)},
        {"partition_count", py_int(run_.world)}};
    if (run_.alignment > 1) states.emplace_back("param_alignment_paddings", py_list(paddings));
    return torch.file(
        py_dict({{"optimizer_state_dict", py_dict(states)}, {"ds_version", py_str("0.19.8")}}));
  }

  Opcodes param_shapes() const {
    std::vector<Opcodes> groups;
    for (const auto& group : run_.groups) {
      std::vector<std::pair<std::string, Opcodes>> shapes;
      for (const ZeroParameter& parameter : group) {
        shapes.emplace_back(parameter.name, torch_size(parameter.shape));
      }
      groups.push_back(py_dict(shapes));
    }
    return py_list(groups);
  }

  /// The entries of the model file, by key; what is in `changes` replaces or adds to them.
  std::string model_file(const std::map<std::string, Opcodes>& changes = {},
                         const TorchWriter& torch = {}) const {
    std::map<std::string, Opcodes> entries = {{"module", py_dict({})},
                                              {"buffer_names", py_list({})},
                                              {"param_shapes", param_shapes()},
                                              {"dp_world_size", py_int(run_.world)},
                                              {"mp_world_size", py_int(1)}};
    std::vector<std::pair<std::string, Opcodes>> shared;
    for (const auto& [alias, origin] : run_.shared) shared.emplace_back(alias, py_str(origin));
    entries["shared_params"] = py_dict(shared);
    for (const auto& [key, value] : changes) entries[key] = value;
    return torch.file(py_dict({entries.begin(), entries.end()}));
  }

  std::string model_name(std::int64_t rank = 0) const {
    return run_.stage == 3 ? fmt::format("zero_pp_rank_{}_mp_rank_00_model_states.pt", rank)
                           : std::string("mp_rank_00_model_states.pt");
  }

  static std::string optimizer_name(std::int64_t rank) {
    return fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank);
  }

  void write(const TemporaryDirectory& out, const std::string& tag) const {
    for (std::int64_t rank = 0; rank < run_.world; ++rank) {
      out.write(tag + "/" + optimizer_name(rank), optimizer_file(rank));
    }
    out.write(tag + "/" + model_name(), model_file());
  }

 private:
  std::int64_t padding(const std::vector<ZeroParameter>& group, std::size_t index) const {
    if (index + 1 == group.size()) return 0;
    return (run_.alignment - group[index].numel() % run_.alignment) % run_.alignment;
  }

  static std::int64_t ceil_to(std::int64_t value, std::int64_t unit) {
    return (value + unit - 1) / unit * unit;
  }

  // Stages 1 and 2: end to end, padded to twice the world, cut into equal pieces.
  std::string flat(const std::vector<ZeroParameter>& group, std::int64_t rank) const {
    std::string all;
    for (std::size_t i = 0; i < group.size(); ++i) {
      all += values_.at(group[i].name);
      all += std::string(static_cast<std::size_t>(padding(group, i)) * 4, '\0');
    }
    const auto used = static_cast<std::int64_t>(all.size() / 4);
    const std::int64_t padded = ceil_to(used, 2 * run_.world);
    all.resize(static_cast<std::size_t>(padded) * 4, '\0');
    const std::int64_t piece = padded / run_.world;
    const std::int64_t begin = rank * piece;
    std::int64_t end = begin + piece;
    const bool last = rank + 1 == run_.world;
    if (run_.trim == ZeroTrim::EveryRank) end = std::max(begin, std::min(end, used));
    if (run_.trim == ZeroTrim::LastRank && last) end = std::max(begin, used);
    return all.substr(static_cast<std::size_t>(begin) * 4,
                      static_cast<std::size_t>(end - begin) * 4);
  }

  // Stage 3: each parameter cut by itself; what lies behind its end is garbage.
  std::string sharded(const std::vector<ZeroParameter>& group, std::int64_t rank) const {
    std::string mine;
    for (const ZeroParameter& parameter : group) {
      std::string bytes = values_.at(parameter.name);
      const auto piece =
          static_cast<std::size_t>(ceil_to(parameter.numel(), run_.world) / run_.world) * 4;
      bytes.resize(piece * static_cast<std::size_t>(run_.world), '\xcc');
      mine += bytes.substr(piece * static_cast<std::size_t>(rank), piece);
    }
    return mine;
  }

  ZeroRun run_;
  std::map<std::string, std::string> values_;
};

}  // namespace ckfs
