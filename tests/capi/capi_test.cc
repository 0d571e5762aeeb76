#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ckfs/ckfs.h>

#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::string kSource = std::string(CKFS_TEST_DATA) + "/hf/deepseek-v3-fp8/source";

/// The code of an error, 0 of none; and its message.
struct Answer {
  std::int32_t code = 0;
  std::int32_t system_error = 0;
  std::string message;
};

Answer answer(ckfs_error* error) {
  if (error == nullptr) return {};
  const Answer told{error->code, error->system_error, error->message};
  ckfs_error_free(error);
  return told;
}

nlohmann::json take_json(ckfs_buffer& buffer) {
  const std::string text(static_cast<const char*>(buffer.data), buffer.size);
  EXPECT_EQ(std::strlen(static_cast<const char*>(buffer.data)), buffer.size);
  ckfs_buffer_release(&buffer);
  EXPECT_EQ(buffer.data, nullptr);
  return nlohmann::json::parse(text);
}

std::string to_string(ckfs_text text) {
  return {text.data, text.size};
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Capi : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(answer(ckfs_open(kSource.c_str(), nullptr, nullptr, &checkpoint_)).message, "");
    ASSERT_EQ(answer(ckfs_view_open(checkpoint_, "bf16-safetensors", nullptr, &view_)).message, "");
  }
  void TearDown() override {
    ckfs_close(checkpoint_);
    ckfs_view_close(view_);
  }

  ckfs_view_info info() const {
    ckfs_view_info info{};
    EXPECT_EQ(answer(ckfs_view_describe(view_, &info)).message, "");
    return info;
  }

  std::string file(const std::string& path) const {
    std::uint64_t number = 0, got = 0;
    EXPECT_EQ(answer(ckfs_find_file(view_, path.data(), path.size(), &number)).message, "");
    ckfs_file_info told{};
    EXPECT_EQ(answer(ckfs_file_describe(view_, number, &told)).message, "");
    EXPECT_EQ(to_string(told.path), path);
    ckfs_file* opened = nullptr;
    EXPECT_EQ(answer(ckfs_file_open(view_, number, &opened)).message, "");
    std::string bytes(told.size + 10, '?');
    EXPECT_EQ(answer(ckfs_file_read(opened, 0, bytes.data(), bytes.size(), nullptr, &got)).message,
              "");
    ckfs_file_close(opened);
    EXPECT_EQ(got, told.size);
    bytes.resize(got);
    return bytes;
  }

  ckfs_checkpoint* checkpoint_ = nullptr;
  ckfs_view* view_ = nullptr;
};

TEST_F(Capi, DescribesAViewItsFilesAndItsTensors) {
  EXPECT_EQ(to_string(info().name), "bf16-safetensors");
  ASSERT_GT(info().files, 3u);
  ASSERT_GT(info().tensors, 10u);
  std::uint64_t norm = 0;
  const std::string name = "model.norm.weight";
  ASSERT_EQ(answer(ckfs_find_tensor(view_, name.data(), name.size(), &norm)).message, "");
  ckfs_tensor_info tensor{};
  ASSERT_EQ(answer(ckfs_tensor_describe(view_, norm, &tensor)).message, "");
  EXPECT_EQ(to_string(tensor.name), name);
  EXPECT_EQ(to_string(tensor.folder), "");
  EXPECT_EQ(to_string(tensor.dtype), "BF16");
  ASSERT_EQ(tensor.dimensions, 1u);
  EXPECT_EQ(tensor.size, 2 * static_cast<std::uint64_t>(tensor.shape[0]));
  EXPECT_EQ(tensor.exactness, CKFS_BIT_EXACT);
  ckfs_file_info holder{};
  ASSERT_EQ(answer(ckfs_file_describe(view_, tensor.file, &holder)).message, "");
  EXPECT_THAT(to_string(holder.path), StartsWith("model-"));
  EXPECT_GT(holder.tensors, 0u);
}

TEST_F(Capi, ReadsTensorsAsTheFilesHaveThem) {
  std::vector<std::string> bytes;
  std::vector<ckfs_tensor_read> reads;
  bytes.reserve(info().tensors);
  for (std::uint64_t i = 0; i < info().tensors; ++i) {
    ckfs_tensor_info tensor{};
    ASSERT_EQ(answer(ckfs_tensor_describe(view_, i, &tensor)).message, "");
    bytes.emplace_back(tensor.size, '?');
    reads.push_back({i, 0, CKFS_ALL_ROWS, bytes.back().data(), tensor.size});
  }
  ASSERT_EQ(answer(ckfs_read_tensors(view_, reads.data(), reads.size(), 2, nullptr)).message, "");
  std::map<std::string, std::string> files;
  for (std::uint64_t i = 0; i < info().tensors; ++i) {
    ckfs_tensor_info tensor{};
    ckfs_file_info holder{};
    ASSERT_EQ(answer(ckfs_tensor_describe(view_, i, &tensor)).message, "");
    ASSERT_EQ(answer(ckfs_file_describe(view_, tensor.file, &holder)).message, "");
    std::string& text = files[to_string(holder.path)];
    if (text.empty()) text = file(to_string(holder.path));
    std::uint64_t length = 0;
    std::memcpy(&length, text.data(), 8);
    const auto header = nlohmann::json::parse(text.substr(8, length));
    const auto& entry = header[to_string(tensor.name)];
    const auto begin = 8 + length + entry["data_offsets"][0].get<std::uint64_t>();
    EXPECT_EQ(entry["dtype"], to_string(tensor.dtype));
    ASSERT_EQ(bytes[i], text.substr(begin, tensor.size)) << to_string(tensor.name);
    if (tensor.dimensions == 0 || tensor.shape[0] < 3) continue;
    const std::uint64_t row = tensor.size / static_cast<std::uint64_t>(tensor.shape[0]);
    std::string rows(2 * row, '?');
    const ckfs_tensor_read read{i, 1, 2, rows.data(), rows.size()};
    ASSERT_EQ(answer(ckfs_read_tensors(view_, &read, 1, 0, nullptr)).message, "");
    ASSERT_EQ(rows, text.substr(begin + row, 2 * row)) << to_string(tensor.name);
  }
}

TEST_F(Capi, TellsErrorsByCodeAndLine) {
  ckfs_checkpoint* none = nullptr;
  Answer told = answer(ckfs_open("/no/such/checkpoint", nullptr, nullptr, &none));
  EXPECT_EQ(told.code, CKFS_NOT_FOUND);
  EXPECT_EQ(told.system_error, 0);
  EXPECT_THAT(told.message, StartsWith("/no/such/checkpoint: "));
  EXPECT_EQ(none, nullptr);
  const auto option = [&](const char* text) {
    const char* const options[] = {text, nullptr};
    return answer(ckfs_open(kSource.c_str(), options, nullptr, &none));
  };
  EXPECT_EQ(option("memory=1").message, "memory: 1 is too little (at least 64MiB)");
  EXPECT_EQ(answer(ckfs_open_with(nullptr, kSource.c_str(), nullptr, nullptr, &none)).message,
            "ckfs_open_with: an argument is NULL");
  EXPECT_EQ(option("mem=1GiB").message, "mem: no such option");
  EXPECT_EQ(option("memory").code, CKFS_INVALID_ARGUMENT);
  ckfs_view* view = nullptr;
  EXPECT_EQ(answer(ckfs_view_open(checkpoint_, "bf17-safetensors", nullptr, &view)).code,
            CKFS_NOT_FOUND);
  std::uint64_t number = 99;
  told = answer(ckfs_find_tensor(view_, "model.norm.weigh", 16, &number));
  EXPECT_EQ(told.code, CKFS_NOT_FOUND);
  EXPECT_THAT(told.message, HasSubstr("did you mean model.norm.weight?"));
  EXPECT_EQ(number, 99u);
  EXPECT_EQ(answer(ckfs_find_file(view_, "no", 2, &number)).code, CKFS_NOT_FOUND);
  ckfs_tensor_info tensor{};
  EXPECT_EQ(answer(ckfs_tensor_describe(view_, info().tensors, &tensor)).code, CKFS_NOT_FOUND);
  ckfs_file_info held{};
  EXPECT_EQ(answer(ckfs_file_describe(view_, ~std::uint64_t{0}, &held)).code, CKFS_NOT_FOUND);
  char byte = 0;
  const ckfs_tensor_read narrow{0, 0, CKFS_ALL_ROWS, &byte, 1};
  EXPECT_EQ(answer(ckfs_read_tensors(view_, &narrow, 1, 0, nullptr)).code, CKFS_INVALID_ARGUMENT);
  EXPECT_EQ(answer(ckfs_open(nullptr, nullptr, nullptr, &none)).message,
            "ckfs_open: an argument is NULL");
  ckfs_buffer json{};
  EXPECT_EQ(answer(ckfs_report(checkpoint_, "weather", nullptr, &json)).code,
            CKFS_INVALID_ARGUMENT);
  ckfs_error_free(nullptr);
  ckfs_buffer_release(nullptr);
}

TEST_F(Capi, SharesABudget) {
  const std::string kShards[] = {"model-00001-of-00003.safetensors",
                                 "model-00002-of-00003.safetensors"};
  ckfs_budget* budget = nullptr;
  const char* const of_64[] = {"memory=64MiB", nullptr};
  ASSERT_EQ(answer(ckfs_budget_new(of_64, &budget)).message, "");
  ckfs_checkpoint* checkpoint = nullptr;
  EXPECT_EQ(answer(ckfs_open_with(budget, kSource.c_str(), of_64, nullptr, &checkpoint)).message,
            "memory: the budget says it");
  EXPECT_EQ(checkpoint, nullptr);
  std::uint64_t held = 1, peak = 1;
  ckfs_budget_held(budget, &held, &peak);
  EXPECT_EQ(peak, 0u);
  for (std::size_t k = 0; k < 2; ++k) {
    ASSERT_EQ(
        answer(ckfs_open_with(budget, kSource.c_str(), nullptr, nullptr, &checkpoint)).message, "");
    ckfs_view_close(view_);
    ASSERT_EQ(answer(ckfs_view_open(checkpoint, "bf16-safetensors", nullptr, &view_)).message, "");
    file(kShards[k]);
    ckfs_buffer json{};
    ASSERT_EQ(answer(ckfs_report(checkpoint, "status", nullptr, &json)).message, "");
    EXPECT_EQ(take_json(json)["memory_budget"], 64 << 20);
    ckfs_close(checkpoint);
    ckfs_budget_held(budget, &held, &peak);
    EXPECT_GT(peak, 0u);
    EXPECT_LE(peak, std::uint64_t{64} << 20);
  }
  ckfs_budget_free(budget);  // the view goes on with it
  file(kShards[1]);
  budget = nullptr;
  ckfs_budget_free(budget);
  const auto option = [&](const char* text) {
    const char* const options[] = {text, nullptr};
    return answer(ckfs_budget_new(options, &budget)).message;
  };
  EXPECT_EQ(option("memory=1"), "memory: 1 is too little (at least 64MiB)");
  EXPECT_THAT(option("for_server=1GiB"), HasSubstr("did you mean for_servers?"));
  EXPECT_THAT(option("for_servers=1"), StartsWith("budget: 1 for servers"));
  EXPECT_EQ(budget, nullptr);
}

TEST_F(Capi, ReportsAsTheProgramDoes) {
  ckfs_buffer json{};
  ASSERT_EQ(answer(ckfs_report(checkpoint_, "inspect", nullptr, &json)).message, "");
  EXPECT_EQ(take_json(json)["source"], kSource);
  ASSERT_EQ(answer(ckfs_report(checkpoint_, "status", nullptr, &json)).message, "");
  EXPECT_EQ(take_json(json)["version"], 1);
  ASSERT_EQ(answer(ckfs_report(checkpoint_, "view", "bf16-safetensors", &json)).message, "");
  EXPECT_EQ(take_json(json)["arrays"].size(), info().tensors);
}

TEST_F(Capi, ExportsVerifiesAndDigests) {
  const TemporaryDirectory directory;
  const std::string out = (directory / "out").native();
  ckfs_task* task = nullptr;
  ASSERT_EQ(answer(ckfs_task_new(&task)).message, "");
  ckfs_buffer json{};
  const char* const jobs[] = {"jobs=2", nullptr};
  ASSERT_EQ(answer(ckfs_export(view_, out.c_str(), jobs, task, &json)).message, "");
  EXPECT_EQ(take_json(json)["files"], info().files);
  std::uint64_t done = 0, total = 0;
  ckfs_task_progress(task, &done, &total);
  ckfs_task_free(task);
  EXPECT_EQ(done, total);
  EXPECT_GT(total, 0u);
  EXPECT_EQ(read_file(directory / "out/config.json"), file("config.json"));

  ASSERT_EQ(answer(ckfs_verify(view_, out.c_str(), nullptr, nullptr, &json)).message, "");
  EXPECT_EQ(take_json(json)["equal"], true);
  directory.write("out/config.json", "{}");
  ASSERT_EQ(answer(ckfs_verify(view_, out.c_str(), nullptr, nullptr, &json)).message, "");
  const auto different = take_json(json);
  EXPECT_EQ(different["equal"], false);
  EXPECT_EQ(different["differences"][0]["path"], "config.json");

  const char* const two[] = {"algorithm=xxh128", "algorithm=sha256", nullptr};
  ASSERT_EQ(answer(ckfs_digest(view_, two, nullptr, &json)).message, "");
  const auto digests = take_json(json);
  EXPECT_EQ(digests["files"].size(), info().files);
  EXPECT_EQ(digests["files"][0]["sha256"].get<std::string>().size(), 64u);
  const char* const wrong[] = {"sum=1", nullptr};
  EXPECT_EQ(answer(ckfs_digest(view_, wrong, nullptr, &json)).message,
            "sum: no such option (there are: jobs, algorithm)");
}

TEST_F(Capi, EndsWorkThatAnotherThreadStops) {
  const TemporaryDirectory directory;
  constexpr std::uint64_t kBytes = std::uint64_t{1} << 30;  // of zeros, which take no disk
  const std::string header = safetensors_file(
      R"({"t":{"dtype":"BF16","shape":[32768,16384],"data_offsets":[0,1073741824]}})", "");
  directory.write("model.safetensors", header);
  std::filesystem::resize_file(directory / "model.safetensors", header.size() + kBytes);
  ckfs_checkpoint* checkpoint = nullptr;
  ckfs_view* view = nullptr;
  ASSERT_EQ(answer(ckfs_open(directory.path().c_str(), nullptr, nullptr, &checkpoint)).message, "");
  ASSERT_EQ(answer(ckfs_view_open(checkpoint, "fp32-safetensors", nullptr, &view)).message, "");
  ckfs_task* task = nullptr;
  ASSERT_EQ(answer(ckfs_task_new(&task)).message, "");
  ckfs_buffer json{};
  Answer told;
  std::thread digests([&] { told = answer(ckfs_digest(view, nullptr, task, &json)); });
  std::uint64_t done = 0, total = 0;
  while (done == 0) ckfs_task_progress(task, &done, &total);
  EXPECT_LT(done, total);  // all of it takes seconds
  ckfs_task_stop(task);
  digests.join();
  EXPECT_EQ(told.code, CKFS_STOPPED) << told.message;
  EXPECT_EQ(json.data, nullptr);
  std::string bytes(total, '?');
  const ckfs_tensor_read read{0, 0, 1, bytes.data(), bytes.size()};
  EXPECT_EQ(answer(ckfs_read_tensors(view, &read, 1, 0, task)).code, CKFS_INVALID_ARGUMENT);
  EXPECT_EQ(answer(ckfs_digest(view, nullptr, task, &json)).code, CKFS_STOPPED);
  ckfs_task_free(task);
  ckfs_view_close(view);
  ckfs_close(checkpoint);
}

TEST_F(Capi, SendsTheLogWhereItIsTold) {
  std::vector<std::pair<std::int32_t, std::string>> lines;
  ckfs_set_log(
      [](void* context, std::int32_t level, const char* line, std::uint64_t size) {
        static_cast<decltype(lines)*>(context)->emplace_back(level, std::string(line, size));
      },
      &lines, 2);
  const TemporaryDirectory directory;
  directory.write("model.safetensors", safetensors_text({{"t", std::size_t{1} << 20}}, 1));
  ckfs_checkpoint* checkpoint = nullptr;
  ckfs_view* view = nullptr;
  ASSERT_EQ(answer(ckfs_open(directory.path().c_str(), nullptr, nullptr, &checkpoint)).message, "");
  ASSERT_EQ(answer(ckfs_view_open(checkpoint, "bf16-safetensors", nullptr, &view)).message, "");
  std::filesystem::resize_file(directory / "model.safetensors", 100);
  ckfs_tensor_info tensor{};
  ASSERT_EQ(answer(ckfs_tensor_describe(view, 0, &tensor)).message, "");
  std::string bytes(tensor.size, '?');
  const ckfs_tensor_read read{0, 0, CKFS_ALL_ROWS, bytes.data(), bytes.size()};
  EXPECT_EQ(answer(ckfs_read_tensors(view, &read, 1, 0, nullptr)).code, CKFS_STALE);
  ckfs_set_log(nullptr, nullptr, 4);
  ASSERT_FALSE(lines.empty());
  EXPECT_GE(lines[0].first, 2);
  EXPECT_THAT(lines[0].second, HasSubstr("model.safetensors"));
  ckfs_view_close(view);
  ckfs_close(checkpoint);
}

TEST_F(Capi, IsRefusedToAForkedChildThatMayClose) {
  ckfs_budget* budget = nullptr;
  ASSERT_EQ(answer(ckfs_budget_new(nullptr, &budget)).message, "");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    ckfs_view* view = nullptr;
    ckfs_checkpoint* checkpoint = nullptr;
    ckfs_buffer json{};
    const bool refused =
        answer(ckfs_view_open(checkpoint_, "source", nullptr, &view)).code ==
            CKFS_INVALID_ARGUMENT &&
        answer(ckfs_report(checkpoint_, "status", nullptr, &json)).code == CKFS_INVALID_ARGUMENT &&
        answer(ckfs_open_with(budget, kSource.c_str(), nullptr, nullptr, &checkpoint)).code ==
            CKFS_INVALID_ARGUMENT;
    ckfs_budget_held(budget, nullptr, nullptr);
    ckfs_budget_free(budget);
    ckfs_view_close(view_);
    ckfs_close(checkpoint_);
    ::_exit(refused ? 0 : 1);
  }
  ckfs_budget_free(budget);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Version, IsThatOfTheProject) {
  EXPECT_THAT(ckfs_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace ckfs
