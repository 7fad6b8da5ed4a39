// Samples per second that one core reads: lines or pages to hashed keys and transformed numbers, as a worker does
// before it keeps them. The text is Criteo-like: 13 integers and 26 categories of 8 hexadecimal digits, a few of them
// empty, drawn by a seed; the file lies in the page cache.
//
//   data_benchmark                                                 Criteo's format, and the same file as csv
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

// A file of Criteo-like lines, removed at the end.
class CriteoFile {
 public:
  CriteoFile() : path_(absl::StrCat("/tmp/data_benchmark_", getpid(), ".tsv")) {
    std::mt19937_64 random(kSeed);
    std::ofstream file(path_);
    for (int i = 0; i < kSamples; ++i) {
      std::string line = random() % 4 == 0 ? "1" : "0";
      for (int n = 0; n < kNumbers; ++n) {
        absl::StrAppend(&line, "\t");
        if (random() % 5 != 0) absl::StrAppend(&line, random() % (random() % 3 == 0 ? 20'000 : 30));
      }
      for (int c = 0; c < kCategories; ++c) {
        absl::StrAppend(&line, "\t");
        if (random() % 8 != 0)
          absl::StrAppendFormat(&line, "%08x", static_cast<uint32_t>(random() % 5000 * 0x9e3779b1));
      }
      file << line << "\n";
    }
  }
  ~CriteoFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
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
  const CriteoFile text;
  DataConfig criteo;
  benchmark::RegisterBenchmark("Criteo", [&](benchmark::State& state) {
    ReadSamples(state, criteo, DataConfig::CRITEO, text.path());
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
    ReadSamples(state, csv, DataConfig::CSV, text.path());
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
