// Chunks of an array are of one size, so where they lie is arithmetic, too: as many as fit behind
// what came before, then file after file of equally many.
#include "container/ocdbt_item.h"

#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "base/hash.h"
#include "base/rounding.h"
#include "base/text.h"
#include "container/orbax_files.h"
#include "format/ocdbt.h"

namespace ckfs {
namespace {

constexpr std::string_view kNodeFile = "d/nodes";
constexpr std::string_view kManifest = "manifest.ocdbt";

std::string data_file(std::uint32_t number) {
  return fmt::format("d/{:05}", number);
}

/// Where the chunks of an array lie: the first, and all that follow from it.
struct ChunkSequence {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t before = 0;  // chunks of other arrays in that file

  static std::uint64_t fitting(std::uint64_t room, std::uint64_t bytes) {
    return std::clamp<std::uint64_t>(room / bytes, 1, kDataFileChunks);
  }
  /// Chunks in the first file, if there are so many, and in each after it.
  std::uint64_t first(std::uint64_t bytes) const {
    return std::min(fitting(kDataFileBytes - std::min(offset, kDataFileBytes), bytes),
                    kDataFileChunks - before);
  }
  static std::uint64_t others(std::uint64_t bytes) { return fitting(kDataFileBytes, bytes); }

  ocdbt::DataLocation place(std::uint64_t number, std::uint64_t bytes) const {
    const std::uint64_t here = first(bytes);
    if (number < here) return {file, offset + number * bytes, bytes};
    const std::uint64_t rest = number - here;
    const std::uint64_t each = others(bytes);
    return {static_cast<std::uint32_t>(file + 1 + rest / each), rest % each * bytes, bytes};
  }
  /// The chunks in a file, of `count`.
  std::pair<std::uint64_t, std::uint64_t> in(std::uint32_t number, std::uint64_t count,
                                             std::uint64_t bytes) const {
    const std::uint64_t here = std::min(count, first(bytes));
    if (number < file) return {0, 0};
    if (number == file) return {0, here};
    const std::uint64_t begin = here + (number - file - 1) * others(bytes);
    return {std::min(count, begin), std::min(count, begin + others(bytes))};
  }
};

/// The number at `place` of those below `count` in the order of their decimal digits: 0, 1, 10,
/// 11, 2. Requires: place < count < 2^59.
std::int64_t by_digits(std::int64_t place, std::int64_t count) {
  if (count <= 10 || place == 0) return place;
  std::int64_t number = 1;
  for (std::int64_t left = place - 1; left > 0;) {
    std::int64_t below = 0;  // numbers that begin with the digits of this one
    for (std::int64_t first = number, end = number + 1; first < count; first *= 10, end *= 10) {
      below += std::min(end, count) - first;
    }
    if (below <= left) {
      left -= below;
      ++number;
    } else {
      --left;
      number *= 10;
    }
  }
  return number;
}

class OcdbtItem final : public OrbaxContainer {
 public:
  explicit OcdbtItem(ItemArrays arrays) : OrbaxContainer(std::move(arrays), {}) {}

  Result<void> build() {
    CKFS_TRY_VOID(place_chunks());
    measure_nodes();
    return {};
  }

 private:
  /// The known facts of a data file.
  struct DataFile {
    FileFacts facts;
    std::uint64_t chunks = 0;
    std::size_t first_array = 0;
    std::size_t end_array = 0;
  };
  /// A node, and where it lies in the file of nodes.
  struct Node {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    ocdbt::NodeTotals totals;
  };

  // Data files, the file of nodes, the manifest.
  std::size_t stored() const override { return files_.size() + 2; }
  bool is_data(std::size_t file) const { return file < files_.size(); }
  bool is_nodes(std::size_t file) const { return file == files_.size(); }

  std::string stored_path(std::size_t file) const override {
    if (is_data(file)) return data_file(static_cast<std::uint32_t>(file));
    return std::string(is_nodes(file) ? kNodeFile : kManifest);
  }

  FileFacts stored_facts(std::size_t file) const override {
    if (is_data(file)) return files_[file].facts;
    const std::uint64_t size =
        is_nodes(file) ? nodes_.back().offset + nodes_.back().size : manifest().size();
    return {size, 0, Exactness::BitExact};
  }

  std::vector<std::uint32_t> stored_tensors(std::size_t file) const override {
    std::vector<std::uint32_t> ids;
    if (is_data(file)) {
      for_each_in(file, [&](std::size_t array, std::uint64_t /*begin*/, std::uint64_t /*end*/) {
        ids.push_back(arrays().tensor(array));
      });
    }
    return ids;
  }

  FileLayout lay_out_stored(std::size_t file) const override {
    const auto self = std::static_pointer_cast<const OcdbtItem>(shared_from_this());
    if (is_data(file)) return lay_out_data(file);
    if (!is_nodes(file)) {
      return text_layout(manifest().size(), [self] { return self->manifest(); });
    }
    FileLayout layout;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      layout.literals.push_back(nodes_[i].size);
      layout.segments.push_back({nodes_[i].offset, 0, i, Segment::Kind::Literal});
    }
    layout.render = [self](std::uint32_t node) { return self->render_node(node); };
    return layout;
  }

  FileLayout lay_out_data(std::size_t file) const {
    FileLayout layout;
    for_each_in(file, [&](std::size_t array, std::uint64_t begin, std::uint64_t end) {
      const std::uint64_t bytes = arrays().chunks(array).bytes();
      arrays().add_to(layout, array, begin, end, runs_[array].place(begin, bytes).offset);
    });
    return layout;
  }

  /// Calls use(array, begin, end) for the chunks that a data file has of each array.
  template <typename Use>
  void for_each_in(std::size_t file, Use use) const {
    for (std::size_t i = files_[file].first_array; i < files_[file].end_array; ++i) {
      if (!in_data(i)) continue;
      const ArrayChunks& chunks = arrays().chunks(i);
      const auto [begin, end] =
          runs_[i].in(static_cast<std::uint32_t>(file), chunks.count(), chunks.bytes());
      if (begin < end) use(i, begin, end);
    }
  }

  /// `step` lies in its leaf.
  bool in_data(std::size_t array) const {
    return arrays().tensor(array) != ModelTensor::kNone && arrays().chunks(array).count() > 0;
  }

  Result<void> place_chunks();
  void measure_nodes();

  // Keys of the database by number: of each array its chunks', by their text, and its metadata's.

  std::uint64_t first_key(std::size_t array) const { return arrays().first_chunk(array) + array; }
  std::uint64_t keys() const { return arrays().chunk_count() + arrays().size(); }
  std::size_t array_of_key(std::uint64_t key) const;
  template <typename Use>
  void for_each_key(std::uint64_t begin, std::uint64_t end, Use use) const;
  template <typename Column>
  ocdbt::Leaf<Column> leaf(std::uint64_t number) const;
  std::string first_key_of_leaf(std::uint64_t leaf) const;

  std::uint64_t leaves() const { return ceil_div<std::uint64_t>(keys(), ocdbt::kNodeEntries); }
  /// The children of a node above leaves, and its height.
  std::pair<std::uint8_t, std::vector<ocdbt::Child>> children(std::size_t node) const;
  std::string render_node(std::size_t node) const;
  std::string manifest() const;

  const ocdbt::FileName name_ = data_file;
  std::vector<ChunkSequence> runs_;  // by array
  std::vector<DataFile> files_;
  std::vector<Node> nodes_;          // leaves, and the levels above them, to the root
  std::vector<std::size_t> levels_;  // where in nodes_ each begins
};

Result<void> OcdbtItem::place_chunks() {
  runs_.reserve(arrays().size());
  for (std::size_t i = 0; i < arrays().size(); ++i) {
    const ArrayChunks& chunks = arrays().chunks(i);
    runs_.emplace_back();
    if (!in_data(i)) continue;
    const std::uint64_t bytes = chunks.bytes();
    const auto total = checked_mul(bytes, chunks.count());
    if (!total || *total > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      return fail(ErrorCode::Unsupported, "{}: larger than 2^63 - 1 bytes", arrays().name(i));
    }
    const bool opens = files_.empty() || files_.back().facts.size + bytes > kDataFileBytes ||
                       files_.back().chunks == kDataFileChunks;
    ChunkSequence& run = runs_.back();
    run.file = static_cast<std::uint32_t>(opens ? files_.size() : files_.size() - 1);
    run.offset = opens ? 0 : files_.back().facts.size;
    run.before = opens ? 0 : files_.back().chunks;
    const std::uint32_t last = run.place(chunks.count() - 1, bytes).file;
    for (std::uint32_t file = run.file; file <= last; ++file) {
      if (file == kMostFiles) {
        return fail(ErrorCode::Unsupported,
                    "{}: the item has more than {} data files of {} bytes, or of {} chunks",
                    quote(arrays().name(i)), kMostFiles, kDataFileBytes, kDataFileChunks);
      }
      if (file == files_.size()) files_.push_back({{}, 0, i, 0});
      const auto [begin, end] = run.in(file, chunks.count(), bytes);
      DataFile& data = files_[file];
      data.end_array = i + 1;
      data.facts.size += (end - begin) * bytes;
      data.chunks += end - begin;
      data.facts.tensors += 1;
      data.facts.exactness = std::max(data.facts.exactness,
                                      arrays().definition().tensors[arrays().tensor(i)].exactness);
    }
  }
  return {};
}

void OcdbtItem::measure_nodes() {
  std::uint64_t end = 0;
  const auto add = [&](std::uint64_t size, ocdbt::NodeTotals totals) {
    nodes_.push_back({end, size, totals});
    end += size;
  };
  levels_.push_back(0);
  for (std::uint64_t i = 0; i < leaves(); ++i) {
    const auto counted = leaf<ocdbt::CountedColumn>(i);
    add(counted.size(), counted.totals());
  }
  while (nodes_.size() - levels_.back() > 1) {
    const std::size_t below = nodes_.size() - levels_.back();
    levels_.push_back(nodes_.size());
    const std::size_t count = ceil_div(below, ocdbt::kNodeEntries);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t node = nodes_.size();
      const auto [height, below_it] = children(node);
      ocdbt::NodeTotals totals;
      for (const ocdbt::Child& child : below_it) {
        totals.keys += child.totals.keys;
        totals.tree_bytes += child.totals.tree_bytes;
        totals.value_bytes += child.totals.value_bytes;
      }
      const std::uint64_t size = ocdbt::render_interior(height, kNodeFile, below_it).size();
      totals.tree_bytes += size;
      add(size, totals);
    }
  }
}

std::size_t OcdbtItem::array_of_key(std::uint64_t key) const {
  std::size_t low = 0;
  for (std::size_t high = arrays().size(); high - low > 1;) {
    const std::size_t middle = low + (high - low) / 2;
    (first_key(middle) <= key ? low : high) = middle;
  }
  return low;
}

/// Calls use(array, chunk) for keys [begin, end), with the chunk's number or, for the metadata's
/// key, count().
template <typename Use>
void OcdbtItem::for_each_key(std::uint64_t begin, std::uint64_t end, Use use) const {
  for (std::size_t i = array_of_key(begin); begin < end; ++i) {
    const ArrayChunks& chunks = arrays().chunks(i);
    const std::uint64_t first = first_key(i);
    const std::span<const std::int64_t> grid = chunks.grid();
    std::vector<std::int64_t> index(grid.size(), 0);
    for (; begin < std::min(end, first + chunks.count()); ++begin) {
      auto rest = static_cast<std::int64_t>(begin - first);
      for (std::size_t d = grid.size(); d-- > 0;) {
        index[d] = by_digits(rest % grid[d], grid[d]);
        rest /= grid[d];
      }
      use(i, chunks.number(index));
    }
    if (begin < end) use(i, chunks.count());
    ++begin;
  }
}

template <typename Column>
ocdbt::Leaf<Column> OcdbtItem::leaf(std::uint64_t number) const {
  ocdbt::Leaf<Column> leaf(name_);
  const std::uint64_t begin = number * ocdbt::kNodeEntries;
  const std::uint64_t end = std::min(keys(), begin + ocdbt::kNodeEntries);
  for_each_key(begin, end, [&](std::size_t array, std::uint64_t chunk) {
    const ArrayChunks& chunks = arrays().chunks(array);
    if (chunk == chunks.count()) {
      leaf.add(arrays().metadata_path(array), arrays().metadata(array));
    } else if (!in_data(array)) {
      leaf.add(arrays().chunk_path(array, chunk), std::string(chunks.bytes(), '\0'));
    } else {
      leaf.add(arrays().chunk_path(array, chunk), runs_[array].place(chunk, chunks.bytes()));
    }
  });
  return leaf;
}

std::string OcdbtItem::first_key_of_leaf(std::uint64_t leaf) const {
  std::string key;
  const std::uint64_t begin = leaf * ocdbt::kNodeEntries;
  for_each_key(begin, begin + 1, [&](std::size_t array, std::uint64_t chunk) {
    const bool is_metadata = chunk == arrays().chunks(array).count();
    key = is_metadata ? arrays().metadata_path(array) : arrays().chunk_path(array, chunk);
  });
  return key;
}

std::pair<std::uint8_t, std::vector<ocdbt::Child>> OcdbtItem::children(std::size_t node) const {
  const auto after = std::ranges::upper_bound(levels_, node);
  const auto height = static_cast<std::size_t>(after - levels_.begin()) - 1;
  const std::size_t below = levels_[height - 1];
  const std::size_t begin = below + (node - levels_[height]) * ocdbt::kNodeEntries;
  const std::size_t end = std::min(levels_[height], begin + ocdbt::kNodeEntries);
  std::uint64_t leaves_each = 1;  // below a child
  for (std::size_t level = 1; level < height; ++level) leaves_each *= ocdbt::kNodeEntries;
  std::vector<ocdbt::Child> children;
  for (std::size_t i = begin; i < end; ++i) {
    children.push_back({first_key_of_leaf((i - below) * leaves_each), nodes_[i].offset,
                        nodes_[i].size, nodes_[i].totals});
  }
  return {static_cast<std::uint8_t>(height), std::move(children)};
}

std::string OcdbtItem::render_node(std::size_t node) const {
  if (node < leaves()) return leaf<ocdbt::KeptColumn>(node).render();
  const auto [height, below] = children(node);
  return ocdbt::render_interior(height, kNodeFile, below);
}

std::string OcdbtItem::manifest() const {
  // Of what the database is, as far as names and sizes say it, and of no host.
  std::string text = arrays().definition().spec.canonical();
  for (const Node& node : nodes_) {
    text += fmt::format(" {} {} {}", node.size, node.totals.keys, node.totals.value_bytes);
  }
  const Node& root = nodes_.back();
  const std::uint64_t hash = stable_hash(text);
  return ocdbt::render_manifest(kNodeFile, {{hash, stable_hash("/", hash)},
                                            static_cast<std::uint8_t>(levels_.size() - 1),
                                            root.offset,
                                            root.size,
                                            root.totals});
}

}  // namespace

Result<std::shared_ptr<const Container>> make_ocdbt_item(ItemArrays arrays) {
  auto item = std::make_shared<OcdbtItem>(std::move(arrays));
  CKFS_TRY_VOID(item->build());
  return item;
}

}  // namespace ckfs
