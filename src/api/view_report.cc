// `ckfs inspect --view`. A text for people says 14,848 names in a line: names that differ in
// numbers only are one pattern with the ranges of those numbers.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "api/checkpoint_impl.h"
#include "api/decode_cost.h"
#include "api/report_json.h"
#include "base/name_hash.h"
#include "base/size_text.h"
#include "base/text.h"
#include "container/item_arrays.h"

namespace ckfs {
namespace {

// The most names of sources in all arrays together: a storage that 100,000 tensors are cut from is
// named by each array that comes from one of them.
constexpr std::size_t kMostSources = std::size_t{1} << 20;

/// The tensors of a source that lie in a storage; the shown ones only.
std::vector<std::vector<TensorId>> tensors_by_storage(const Catalog& catalog) {
  std::vector<std::vector<TensorId>> tensors(catalog.storages().size());
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      const StoredTensor& tensor = catalog.tensor(id);
      if (tensor.boxes.empty()) tensors[tensor.storage].push_back(id);
      for (const StorageBox& box : tensor.boxes) {
        if (tensors[box.storage].empty() || tensors[box.storage].back() != id) {
          tensors[box.storage].push_back(id);
        }
      }
    }
  }
  return tensors;
}

/// The storages that a tensor of a view is made of, ascending.
std::vector<StorageId> storages_of(const Definition& shown, const ModelTensor& tensor) {
  std::vector<StorageId> found;
  const auto add = [&](const TensorExpr& expr) {
    for (const Box& box : expr.boxes()) {
      if (!box.is_constant()) found.push_back(box.source);
    }
  };
  if (tensor.weight != ModelTensor::kNone) {
    add(shown.weights[tensor.weight].values);
    if (shown.weights[tensor.weight].beside) add(*shown.weights[tensor.weight].beside);
  } else if (tensor.stored != ModelTensor::kNone) {
    found.push_back(tensor.stored);
  } else {
    add(tensor.expr);
  }
  std::ranges::sort(found);
  const auto repeated = std::ranges::unique(found);
  found.erase(repeated.begin(), repeated.end());
  return found;
}

/// The storages that a tensor lies in, ascending.
std::vector<StorageId> storages_of(const StoredTensor& tensor) {
  if (tensor.boxes.empty()) return {tensor.storage};
  std::vector<StorageId> found;
  for (const StorageBox& box : tensor.boxes) found.push_back(box.storage);
  std::ranges::sort(found);
  return found;
}

/// Names with their numbers replaced by ranges: "a.{3-60}.b", and how many there are of each.
class Patterns {
 public:
  void add(std::string_view name) {
    std::string form;
    std::vector<std::uint64_t> numbers;
    for (std::size_t i = 0; i < name.size(); ++i) {
      const auto is_digit = [&](std::size_t at) {
        return at < name.size() && name[at] >= '0' && name[at] <= '9';
      };
      // A number is a whole part of a name: not the 2 of "w2".
      std::size_t end = i;
      while (is_digit(end)) ++end;
      const bool whole = end > i && end - i < 10 && (i == 0 || name[i - 1] == '.') &&
                         (end == name.size() || name[end] == '.');
      if (!whole) {
        // NUL is a number's place, and a name may have one: as one_line() shows it.
        if (name[i] == '\0') {
          form += "\\x00";
        } else {
          form += name[i];
        }
        continue;
      }
      std::uint64_t number = 0;
      for (; i < end; ++i) number = number * 10 + static_cast<std::uint64_t>(name[i] - '0');
      --i;
      numbers.push_back(number);
      form += '\0';
    }
    const auto [known, is_new] = index_.try_emplace(form, groups_.size());
    if (is_new) groups_.push_back({form, numbers, numbers, 0});
    Group& group = groups_[known->second];
    ++group.count;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      group.least[i] = std::min(group.least[i], numbers[i]);
      group.greatest[i] = std::max(group.greatest[i], numbers[i]);
    }
  }

  /// A line for each.
  std::string text(std::string_view indent) const {
    std::string lines;
    for (const Group& group : groups_) {
      std::string name;
      std::size_t next = 0;
      for (const char c : group.form) {
        if (c != '\0') {
          name += c;
          continue;
        }
        const std::uint64_t least = group.least[next], greatest = group.greatest[next];
        ++next;
        name += least == greatest ? fmt::format("{}", least)
                                  : fmt::format("{{{}-{}}}", least, greatest);
      }
      lines += fmt::format("{}{}{}\n", indent, one_line(name),
                           group.count > 1 ? fmt::format(" ({})", group.count) : "");
    }
    return lines;
  }

 private:
  struct Group {
    std::string form;
    std::vector<std::uint64_t> least, greatest;
    std::size_t count = 0;
  };
  NameMap<std::size_t> index_;
  std::vector<Group> groups_;
};

}  // namespace

Result<std::string> view_report(const Checkpoint& checkpoint, std::string_view spelling,
                                ReportFormat format) {
  CKFS_TRY(const View view, checkpoint.view(spelling));
  const std::shared_ptr<const Definition> definition = impl_of(view).definition;
  std::map<std::uint32_t, std::vector<std::int64_t>> chunks;
  if (definition->packaging.container == ContainerKind::Orbax) {
    CKFS_TRY(const ItemArrays arrays, ItemArrays::make(definition, zarr::Version::V3));
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const std::span<const std::int64_t> chunk = arrays.chunks(i).chunk();
      chunks.emplace(arrays.tensor(i), std::vector(chunk.begin(), chunk.end()));
    }
  }

  Json json = versioned();
  json["view"] = impl_of(view).name;
  json["arrays"] = Json::array();
  json["left_out"] = Json::array();
  std::string text;
  Patterns left_out;
  std::size_t room = kMostSources;
  const auto add = [&](const Definition& shown, const std::string& directory) {
    const Catalog& catalog = *shown.catalog;
    const std::vector<std::vector<TensorId>> tensors = tensors_by_storage(catalog);
    std::vector<bool> used(catalog.tensors().size(), false);
    std::vector<bool> storages_used(tensors.size(), false);
    const auto path = [&](std::string_view name) { return directory + std::string(name); };
    for (std::uint32_t i = 0; i < shown.tensors.size(); ++i) {
      const ModelTensor& tensor = shown.tensors[i];
      Patterns patterns;
      Json names = Json::array();
      std::size_t more = 0;
      const auto add_name = [&](TensorId id) {
        if (room == 0) {
          ++more;
          return;
        }
        --room;
        if (format == ReportFormat::Json) {
          names.push_back(path(catalog.tensor(id).name));
        } else {
          patterns.add(path(catalog.tensor(id).name));
        }
      };
      // Where the source has a tensor of this name there, it is the one.
      const std::optional<TensorId> own = catalog.find(tensor.name);
      const std::vector<StorageId> own_storages =
          own ? storages_of(catalog.tensor(*own)) : std::vector<StorageId>();
      bool has_own = false;
      for (const StorageId storage : storages_of(shown, tensor)) {
        if (!storages_used[storage]) {
          for (const TensorId id : tensors[storage]) used[id] = true;
          storages_used[storage] = true;
        }
        if (std::ranges::binary_search(own_storages, storage)) {
          if (!has_own) add_name(*own);
          has_own = true;
          continue;
        }
        if (room == 0) {
          more += tensors[storage].size();
          continue;
        }
        for (const TensorId id : tensors[storage]) {
          if (!catalog.tensor(id).alias) add_name(id);
        }
      }
      const auto chunk = chunks.find(i);
      if (format == ReportFormat::Json) {
        Json& item = json["arrays"].emplace_back(Json{{"name", path(tensor.name)},
                                                      {"dtype", name(tensor.expr.dtype())},
                                                      {"shape", tensor.expr.shape()}});
        if (chunk != chunks.end()) item["chunk"] = chunk->second;
        item["exactness"] = name(tensor.exactness);
        if (tensor.weight != ModelTensor::kNone) {
          item["form"] = shown.weights[tensor.weight].quantizer->text();
        }
        item["sources"] = std::move(names);
        if (more > 0) item["more_sources"] = more;
        continue;
      }
      text += fmt::format(
          "{}: {} [{}]{}, {}\n{}", one_line(path(tensor.name)), name(tensor.expr.dtype()),
          fmt::join(tensor.expr.shape(), ", "),
          chunk == chunks.end() ? "" : fmt::format(" in [{}]", fmt::join(chunk->second, ", ")),
          label_text(view, tensor.exactness), patterns.text("    "));
      if (more > 0) text += fmt::format("    and {} more\n", more);
    }
    // Files as they are have all tensors, and none by itself.
    if (shown.packaging.container == ContainerKind::None) return;
    for (const Shard& shard : catalog.shards()) {
      for (const TensorId id : shard.tensors) {
        if (used[id]) continue;
        if (format == ReportFormat::Json) {
          json["left_out"].push_back(path(catalog.tensor(id).name));
        } else {
          left_out.add(path(catalog.tensor(id).name));
        }
      }
    }
  };
  add(*definition, "");
  // What a quantizing view leaves as it is, by the rule that does.
  std::map<std::string_view, Patterns> as_they_are;
  for (const LeftTensor& left : definition->left) {
    if (format == ReportFormat::Json) {
      json["as_they_are"].push_back({{"name", left.name}, {"rule", left.rule}});
    } else {
      as_they_are[left.rule].add(left.name);
    }
  }
  if (!view.tool().empty() && format == ReportFormat::Json) json["quantized_as"] = view.tool();
  for (const DefinitionPart& part : definition->parts) add(*part.definition, part.directory);
  const Checkpoint::Impl& source = *impl_of(view).checkpoint;
  const std::uint64_t spill = source.chunks == nullptr ? 0 : source.chunks->spill_limit();
  const DecodeCost cost = decode_cost(impl_of(view), source.memory, spill);
  const std::vector<std::string> mended =
      cost.is_dear() ? mends(impl_of(view), source.memory, cost) : std::vector<std::string>();
  if (format == ReportFormat::Json) {
    if (cost.decoded > 0) {
      json["decoding"] = {{"needed", cost.needed},
                          {"decoded", cost.decoded},
                          {"chunks", cost.chunks},
                          {"mends", mended}};
    }
    return render(json);
  }
  if (cost.decoded > 0) {
    text +=
        fmt::format("decoding: {} for {} that are needed ({:.2f} : 1) in reading in order{}{}\n",
                    human_size(cost.decoded), human_size(cost.needed), cost.ratio(),
                    mended.empty() ? "" : "; mended by any of ", fmt::join(mended, ", "));
  }
  if (definition->packaging.container == ContainerKind::None) {
    text += fmt::format("{}: the files of the source as they are; no tensor is made\n",
                        impl_of(view).name);
  }
  if (!view.tool().empty()) text += fmt::format("quantized as {}\n", view.tool());
  for (const auto& [rule, patterns] : as_they_are) {
    text += fmt::format("left as they are: {}\n{}", one_line(rule), patterns.text("    "));
  }
  const std::string rest = left_out.text("    ");
  return text + (rest.empty() ? "" : "left out\n" + rest);
}

}  // namespace ckfs
