#include "container/side_files.h"

namespace ckfs {
namespace {

/// The texts, and behind them the files of the source.
class SideFiles final : public Container {
 public:
  SideFiles(std::shared_ptr<const Definition> definition, const ByteSource& source)
      : definition_(std::move(definition)) {
    sizes_.reserve(definition_->texts.size() + definition_->side_files.size());
    for (const TextFile& text : definition_->texts) sizes_.push_back(text.text.size());
    for (const SourceFile& file : definition_->side_files) sizes_.push_back(source.size(file.file));
  }

  std::size_t size() const override { return sizes_.size(); }

  std::string path(std::size_t file) const override {
    return is_text(file) ? definition_->texts[file].path : source_file(file).path;
  }

  FileFacts facts(std::size_t file) const override {
    FileFacts facts{sizes_[file], 0, Exactness::BitExact};
    if (!is_text(file)) facts.copy_of = source_file(file).file;
    return facts;
  }

  std::vector<std::uint32_t> tensors(std::size_t /*file*/) const override { return {}; }

  FileLayout lay_out(std::size_t file) const override {
    FileLayout layout;
    if (is_text(file)) {
      layout.literals.push_back(sizes_[file]);
      layout.render = [definition = definition_, file](std::uint32_t) {
        return definition->texts[file].text;
      };
    }
    if (sizes_[file] == 0) return layout;
    if (is_text(file)) {
      layout.segments.push_back({0, 0, 0, Segment::Kind::Literal});
    } else {
      layout.segments.push_back({0, 0, source_file(file).file, Segment::Kind::File});
    }
    return layout;
  }

 private:
  bool is_text(std::size_t file) const { return file < definition_->texts.size(); }
  const SourceFile& source_file(std::size_t file) const {
    return definition_->side_files[file - definition_->texts.size()];
  }

  const std::shared_ptr<const Definition> definition_;
  std::vector<std::uint64_t> sizes_;
};

}  // namespace

std::shared_ptr<const Container> make_side_files(std::shared_ptr<const Definition> definition,
                                                 const ByteSource& source) {
  return std::make_shared<SideFiles>(std::move(definition), source);
}

}  // namespace ckfs
