// Samples per second that one core reads: lines or pages to hashed keys and transformed numbers, as a worker does
// before it keeps them. The text is Criteo-like: 13 integers and 26 categories of 8 hexadecimal digits, a few of them
// empty, drawn by a seed; the file lies in the page cache.
//
//   data_benchmark                                                 Criteo's format, the same file as csv, and its rows
//   as
//                                                                  npy files (integers as float32, categories as int32)
//   data_benchmark --parquet=FILE                                  a Parquet file with columns label, I1 … I13, C1 …
//   C26, too
//
// Rates are by the CPU time of the thread.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmark/benchmark.h"
#include "worker/data/data_files.h"
#include "worker/data/text_format.h"

namespace lodestone::worker {
namespace {

constexpr int kSamples = 100'000;
constexpr unsigned kSeed = 1;
constexpr int kNumbers = 13;
constexpr int kCategories = 26;

// An npy file of rows with so many columns; `type` is NumPy's name of T.
template <typename T>
void WriteNpy(const std::string& path, const char* type, size_t columns, const std::vector<T>& values) {
  std::string header = absl::StrFormat("{'descr': '%s', 'fortran_order': False, 'shape': (%d, %d), }", type,
                                       values.size() / columns, columns);
  header.resize(118, ' ');
  std::ofstream(path, std::ios::binary) << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header
                                        << absl::string_view(reinterpret_cast<const char*>(values.data()),
                                                             values.size() * sizeof(T));
}

// Criteo-like rows as lines and as npy files, removed at the end.
class CriteoFiles {
 public:
  CriteoFiles() : name_(absl::StrCat("/tmp/data_benchmark_", getpid())) {
    std::mt19937_64 random(kSeed);
    std::ofstream file(lines());
    std::vector<float> numbers;
    std::vector<uint32_t> categories;
    std::vector<int32_t> labels;
    for (int i = 0; i < kSamples; ++i) {
      labels.push_back(random() % 4 == 0);
      std::string line = absl::StrCat(labels.back());
      for (int n = 0; n < kNumbers; ++n) {
        absl::StrAppend(&line, "\t");
        numbers.push_back(0);
        if (random() % 5 == 0) continue;
        const uint64_t number = random() % (random() % 3 == 0 ? 20'000 : 30);
        absl::StrAppend(&line, number);
        numbers.back() = static_cast<float>(number);
      }
      for (int c = 0; c < kCategories; ++c) {
        absl::StrAppend(&line, "\t");
        categories.push_back(0);
        if (random() % 8 == 0) continue;
        categories.back() = static_cast<uint32_t>(random() % 5000 * 0x9e3779b1);
        absl::StrAppendFormat(&line, "%08x", categories.back());
      }
      file << line << "\n";
    }
    WriteNpy(numbers_file(), "<f4", kNumbers, numbers);
    WriteNpy(absl::StrCat(name_, "_sparse.npy"), "<i4", kCategories, categories);
    WriteNpy(absl::StrCat(name_, "_labels.npy"), "<i4", 1, labels);
  }
  ~CriteoFiles() {
    for (const char* end : {".tsv", "_dense.npy", "_sparse.npy", "_labels.npy"}) {
      unlink(absl::StrCat(name_, end).c_str());
    }
  }
  std::string lines() const { return absl::StrCat(name_, ".tsv"); }
  std::string numbers_file() const { return absl::StrCat(name_, "_dense.npy"); }

 private:
  const std::string name_;
};

v1::DataConfig ColumnsConfig() {
  v1::DataConfig config;
  config.set_numeric(v1::LOG);
  for (int n = 1; n <= kNumbers; ++n) config.mutable_csv()->add_numeric(absl::StrCat("I", n));
  for (int c = 1; c <= kCategories; ++c) config.mutable_csv()->add_categorical(absl::StrCat("C", c));
  config.mutable_csv()->set_label("label");
  return config;
}

// Reads the file once for each iteration.
void ReadSamples(benchmark::State& state, const v1::DataConfig& config, v1::DataConfig::Format format,
                 const std::string& file) {
  uint64_t samples = 0, bytes = 0;
  for (auto _ : state) {
    TextFormat text(config, format, nullptr);
    if (const absl::Status started = text.Start(file); !started.ok()) {
      return state.SkipWithError(std::string(started.message()).c_str());
    }
    auto reader = text.Open({.file = file});
    ParsedLine parsed;
    LineError error;
    while (true) {
      const auto outcome = (*reader)->Next(&parsed, &error);
      if (!outcome.ok()) return state.SkipWithError(std::string(outcome.status().message()).c_str());
      if (*outcome == LineOutcome::kMalformed) return state.SkipWithError(error.message.c_str());
      if (*outcome == LineOutcome::kBlank) break;
      benchmark::DoNotOptimize(parsed.keys.data());
      ++samples;
    }
    bytes += (*reader)->bytes_parsed();
  }
  state.SetItemsProcessed(static_cast<int64_t>(samples));
  state.SetBytesProcessed(static_cast<int64_t>(bytes));
}

}  // namespace
}  // namespace lodestone::worker

int main(int argc, char** argv) {
  using namespace lodestone::worker;  // NOLINT: one function.
  using lodestone::v1::DataConfig;
  constexpr char kParquet[] = "--parquet=";
  std::string parquet;
  for (int i = 1; i < argc; ++i) {
    if (absl::StartsWith(argv[i], kParquet)) parquet = argv[i] + sizeof(kParquet) - 1;
  }
  benchmark::Initialize(&argc, argv);
  const CriteoFiles files;
  DataConfig criteo;
  benchmark::RegisterBenchmark("Criteo", [&](benchmark::State& state) {
    ReadSamples(state, criteo, DataConfig::CRITEO, files.lines());
  })->Unit(benchmark::kMillisecond);
  DataConfig csv = ColumnsConfig();
  csv.mutable_csv()->set_header(lodestone::v1::CsvConfig::NO);
  csv.mutable_csv()->set_delimiter("\t");
  csv.mutable_csv()->set_label("0");
  csv.mutable_csv()->clear_numeric();
  csv.mutable_csv()->add_numeric("1-13");
  csv.mutable_csv()->clear_categorical();
  csv.mutable_csv()->add_categorical("14-39");
  benchmark::RegisterBenchmark("Csv", [&](benchmark::State& state) {
    ReadSamples(state, csv, DataConfig::CSV, files.lines());
  })->Unit(benchmark::kMillisecond);
  DataConfig npy;
  benchmark::RegisterBenchmark("CriteoNpy", [&](benchmark::State& state) {
    ReadSamples(state, npy, DataConfig::CRITEO_NPY, files.numbers_file());
  })->Unit(benchmark::kMillisecond);
  const DataConfig columns = ColumnsConfig();
  if (!parquet.empty()) {
    benchmark::RegisterBenchmark("Parquet", [&](benchmark::State& state) {
      ReadSamples(state, columns, DataConfig::PARQUET, parquet);
    })->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
