// The parsers of data files must take any bytes: what they give is well formed, or they say what is wrong and where.
// The first byte chooses the format, the second the options, the rest is the file. To run it for a minute:
//   bazel build --config=asan //tests/fuzz:data_fuzz
//   bazel-bin/tests/fuzz/data_fuzz -max_total_time=60 -timeout=10 -max_len=4096 "$(mktemp -d)" tests/fuzz/data_corpus
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "worker/data/criteo.h"
#include "worker/data/csv.h"
#include "worker/data/csv_layout.h"
#include "worker/data/label_index.h"
#include "worker/data/libsvm.h"
#include "worker/data/line_parser.h"

namespace lodestone {
namespace {

constexpr const char* kDelimiters[] = {"", ",", "\t", "::", " ", "\"", ";;", "|"};

// A CSV parser whose layout comes from the first two lines; null if they have none. `several`: a column has any number
// of categories. `times`: one has dates and times, and one weights.
std::unique_ptr<worker::LineParser> MakeCsvParser(uint8_t options, bool several, bool times,
                                                  const std::vector<absl::string_view>& lines) {
  v1::CsvConfig config;
  config.set_delimiter(kDelimiters[options & 7]);
  if ((options & 8) != 0) config.add_categorical("0");
  if ((options & 16) != 0) config.add_numeric("1-2");
  if ((options & 32) != 0) config.set_label("y");
  if ((options & 64) != 0) config.add_missing("?");
  if ((options & 128) != 0) config.set_header(v1::CsvConfig::YES);
  if (several) {
    v1::MultiColumn& column = (*config.mutable_multi())["3"];
    column.set_separator(kDelimiters[1 + (options & 7) % 7]);
    column.set_values_max(1 + options % 5);
    config.add_missing_indicator("1-2");
  }
  if (times) {
    v1::DateTimeColumn& column = (*config.mutable_datetime())["4"];
    column.set_format(static_cast<v1::DateTimeColumn::Format>(options % 3));
    column.set_hour(v1::DateTimeColumn::NUMBER);
    column.set_age_days(v1::DateTimeColumn::CATEGORY);
    column.set_age_at("2024-03-01");
    config.set_weight("5");
    config.add_labels("6");
    config.add_labels("7");
  }
  std::optional<absl::string_view> second;
  if (lines.size() > 1) second = lines[1];
  auto layout = worker::FindCsvLayout(config, v1::STANDARDIZE, "file", lines[0], second);
  if (!layout.ok()) {
    LODESTONE_CHECK(!layout.status().message().empty());
    return nullptr;
  }
  return std::make_unique<worker::CsvParser>(*std::move(layout));
}

void ParseLines(worker::LineParser* parser, bool sparse, const std::vector<absl::string_view>& lines) {
  auto labels = worker::LabelIndex::Create(worker::LabelKind::kClass, v1::DataConfig());
  LODESTONE_CHECK(labels.ok());
  worker::ParsedLine parsed;
  size_t numbers = 0, keys = 0;
  bool first = true;
  for (const absl::string_view line : lines) {
    worker::LineError error;
    parser->EndsInQuotes(line, false);
    parser->EndsInQuotes(line, true);
    const worker::LineOutcome outcome = parser->Parse(line, &parsed, &error);
    LODESTONE_CHECK((outcome == worker::LineOutcome::kMalformed) == !error.message.empty());
    if (outcome == worker::LineOutcome::kMalformed)
      LODESTONE_CHECK(error.column >= 1 && error.column <= line.size() + 1);
    if (outcome != worker::LineOutcome::kSample) continue;
    const bool several = !parsed.field_keys.empty();
    LODESTONE_CHECK(first || (parsed.numeric.size() == numbers && (sparse || several || parsed.keys.size() == keys)));
    if (several) {
      size_t of_fields = 0;
      for (const uint32_t count : parsed.field_keys) {
        LODESTONE_CHECK(count >= 1 && count <= 5);
        of_fields += count;
      }
      LODESTONE_CHECK(of_fields == parsed.keys.size());
    }
    LODESTONE_CHECK(parsed.values.empty() || parsed.values.size() == parsed.keys.size());
    for (float number : parsed.numeric) LODESTONE_CHECK(!std::isinf(number));
    for (float value : parsed.values) LODESTONE_CHECK(std::isfinite(value));
    LODESTONE_CHECK(std::isfinite(parsed.weight) && parsed.weight >= 0);
    for (float label : parsed.labels) LODESTONE_CHECK(std::isnan(label) || label == 0 || label == 1);
    numbers = parsed.numeric.size();
    keys = parsed.keys.size();
    first = false;
    float label;
    std::string message;
    LODESTONE_CHECK(labels->Add(parsed.label, &label, &message) == message.empty());
  }
  labels->Finish();
  worker::Schema schema;
  labels->FillSchema(&schema);
  LODESTONE_CHECK(schema.class_names.size() == schema.class_counts.size());
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lodestone;  // NOLINT: one function.
  if (size < 2) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  std::unique_ptr<worker::LineParser> parser;
  const bool sparse = data[0] % 3 == 0;
  if (sparse) {
    parser =
        std::make_unique<worker::LibsvmParser>((data[1] & 1) != 0 ? v1::LOG : v1::NONE,
                                               /*label_optional=*/(data[1] & 2) != 0, /*fields=*/(data[1] & 4) != 0);
  } else if (data[0] % 3 == 1) {
    using Categories = worker::CriteoParser::Categories;
    parser = std::make_unique<worker::CriteoParser>((data[1] & 1) != 0 ? v1::LOG_STANDARDIZE : v1::LOG,
                                                    /*label_optional=*/(data[1] & 2) != 0,
                                                    (data[1] & 4) != 0 ? Categories::kNumbers : Categories::kTexts);
  } else {
    parser = MakeCsvParser(data[1], data[0] % 6 == 5, data[0] % 12 >= 8, lines);
  }
  if (parser != nullptr) ParseLines(parser.get(), sparse, lines);
  return 0;
}
