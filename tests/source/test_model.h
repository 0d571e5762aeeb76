// Checkpoints as the quantization schemes see them, made of headers and configuration: what becomes
// of good ones, and tables of broken ones with the reason that each is refused for.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

#include "base/checked.h"
#include "source/hf/quantization.h"
#include "support/memory_source.h"

/// Names of their own: the other tests of the folder have a Broken, too.
namespace ckfs::test_model {

using Shape = std::vector<std::int64_t>;

struct Tensor {
  DType dtype = DType::I32;
  Shape shape;
  std::string content;  // zeros where it is empty
};
using Tensors = std::map<std::string, Tensor>;

/// A catalog of tensors in memory after apply_quantization().
struct Quantized {
  Quantized(const Tensors& tensors, const std::string& config) {
    CatalogBuilder builder("test");
    Shard shard;
    for (const auto& [name, tensor] : tensors) {
      const auto numel = checked_numel(tensor.shape).value();
      const std::uint64_t size = nbytes(tensor.dtype, numel).value();
      // Sizes of hostile shapes are not there: nothing may read them.
      Extent extent{0, 0, size};
      if (!tensor.content.empty()) extent.file = source.add_text(name, tensor.content);
      const StorageId storage =
          builder.add_storage(tensor.dtype, numel, std::span(&extent, size == 0 ? 0 : 1));
      shard.tensors.push_back(builder.add_tensor(name, tensor.shape, storage));
    }
    std::optional<QuantizationConfig> parsed;
    if (!config.empty()) {
      parsed =
          find_quantization("{\"quantization_config\": " + config + "}", "config.json").value();
    }
    QuantizationCost cost;
    companions = apply_quantization(builder, TensorNames(builder), parsed, source, cost).value();
    builder.add_shard(std::move(shard));
    catalog = std::move(builder).build();
  }

  std::map<std::string, std::string> obstacles() const {
    std::map<std::string, std::string> all;
    for (const auto list : {catalog->obstacles(), catalog->unscaled()}) {
      for (const Obstacle& one : list) all[one.tensor] = one.reason;
    }
    return all;
  }
  const Encoding& encoding(const std::string& name) const {
    return *catalog->storage(catalog->tensor(catalog->find(name).value())).encoding;
  }

  MemorySource source;
  std::vector<bool> companions;
  std::shared_ptr<const Catalog> catalog;
};

/// A configuration from its members, written as JSON.
using Config = std::map<std::string, std::string>;
inline std::string text_of(const Config& config) {
  std::string text;
  for (const auto& [key, value] : config) {
    text += (text.empty() ? "{" : ", ") + fmt::format("\"{}\": {}", key, value);
  }
  return text.empty() ? "{}" : text + "}";
}

struct Model {
  Tensors tensors;
  Config config;
};

inline Quantized quantized(const Model& model) {
  return {model.tensors, model.config.empty() ? "" : text_of(model.config)};
}

struct Broken {
  std::string what;
  Model model;
  std::string tensor;  // that the obstacle names
  std::string reason;  // a part of it
};

class Corpus {
 public:
  void add(std::string what, Model model, std::string tensor, std::string reason) {
    cases_.push_back({std::move(what), std::move(model), std::move(tensor), std::move(reason)});
  }

  void drop(const Model& base, const std::string& name, const std::string& tensor,
            const std::string& reason) {
    Model model = base;
    model.tensors.erase(name);
    add("without " + name, model, tensor, reason);
  }
  void shape(const Model& base, const std::string& name, const Shape& shape,
             const std::string& tensor, const std::string& reason) {
    Model model = base;
    model.tensors.at(name).shape = shape;
    model.tensors.at(name).content.clear();
    add(fmt::format("{} of shape [{}]", name, fmt::join(shape, ", ")), model, tensor, reason);
  }
  void dtypes(const Model& base, const std::string& name, std::initializer_list<DType> dtypes,
              const std::string& tensor, const std::string& reason) {
    for (const DType dtype : dtypes) {
      Model model = base;
      model.tensors.at(name).dtype = dtype;
      add(fmt::format("{} of {}", name, ckfs::name(dtype)), model, tensor, reason);
    }
  }
  void config(const Model& base, const std::string& key, std::initializer_list<const char*> values,
              const std::string& tensor, const std::string& reason) {
    for (const char* value : values) {
      Model model = base;
      model.config[key] = value;
      add(fmt::format("{}: {}", key, value), model, tensor, reason);
    }
  }
  /// Each case has an obstacle of its tensor, in one line with its reason.
  void expect_refused() const {
    for (const Broken& broken : cases_) {
      SCOPED_TRACE(broken.what);
      const auto obstacles = quantized(broken.model).obstacles();
      const auto found = obstacles.find(broken.tensor);
      if (found == obstacles.end()) {
        ADD_FAILURE() << "no obstacle of " << broken.tensor;
        continue;
      }
      EXPECT_THAT(found->second, testing::HasSubstr(broken.reason));
      EXPECT_EQ(found->second.find('\n'), std::string::npos);
    }
  }

  std::size_t size() const { return cases_.size(); }

 private:
  std::vector<Broken> cases_;
};

}  // namespace ckfs::test_model
